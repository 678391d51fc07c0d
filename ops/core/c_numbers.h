// Numbers in texts as C has them, whatever a script's setlocale() chose: with that of Germany, say,
// printf would write 0,5, and strtod would end at the point of 0.5.
#pragma once

#include <locale.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace smddp {

// While it lives, this thread reads and writes numbers as in C.
class CNumbers {
 public:
  CNumbers() : before_(::uselocale(C())) {}
  ~CNumbers() { ::uselocale(before_); }
  CNumbers(const CNumbers&) = delete;
  CNumbers& operator=(const CNumbers&) = delete;

 private:
  static locale_t C() {
    static const locale_t c = ::newlocale(LC_ALL_MASK, "C", nullptr);
    return c;
  }
  const locale_t before_;
};

// A value as a message shows it: of a setting, "1.5" and "600".
inline std::string FormatNumber(double value) {
  CNumbers numbers;
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

// As many digits as tell the value from every other.
inline std::string ExactNumber(double value) {
  CNumbers numbers;
  char text[32];
  for (int digits = 9; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  return text;
}

// What a clock showed, "1.5 s" and "600.0 s".
inline std::string FormatSeconds(double seconds) {
  CNumbers numbers;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", seconds);
  return text;
}

}  // namespace smddp
