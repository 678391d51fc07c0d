// The test harness: registration and checks, nothing else.
//
//   TEST(RingOfOne) { EXPECT_EQ(Next(0, 1), 0); }
//
// A failed EXPECT records file, line and values and lets the test go on, so it may be used from the
// threads that play the ranks. A failed ASSERT records and returns from the enclosing void
// function.
#ifndef SMDDP_TESTS_CPP_CHECK_H_
#define SMDDP_TESTS_CPP_CHECK_H_

#include <functional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

namespace smddp_test {

// Adds a test to the list that main() runs, in link order within a file. Returns true for use in an
// initializer.
bool Register(const char* file, const char* name, std::function<void()> body);

// Marks the running test as failed. Any thread may call it.
void RecordFailure(const char* file, int line, const std::string& what);

// Runs body(rank) for ranks 0..size-1, one thread each, and joins them; or, where each rank is a
// process, for that rank alone.
void RunRanks(int size, const std::function<void(int)>& body);

template <typename T, typename = void>
struct IsPrintable : std::false_type {};
template <typename T>
struct IsPrintable<T, std::void_t<decltype(std::declval<std::ostream&>() << std::declval<T>())>>
    : std::true_type {};

template <typename T>
std::string Print(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_same_v<T, signed char> || std::is_same_v<T, unsigned char>) {
    out << static_cast<int>(value);
  } else if constexpr (std::is_enum_v<T>) {
    out << static_cast<long long>(value);
  } else if constexpr (IsPrintable<T>::value) {
    out << value;
  } else {
    out << "(" << sizeof(T) << "-byte object)";
  }
  return out.str();
}

template <typename A, typename B>
bool CheckEqual(const char* file, int line, const char* text, const A& a, const B& b,
                const std::string& note = "") {
  if (a == b) return true;
  RecordFailure(file, line,
                std::string(text) + ": " + Print(a) + " != " + Print(b) +
                    (note.empty() ? "" : " (" + note + ")"));
  return false;
}

inline bool CheckTrue(const char* file, int line, const char* text, bool ok,
                      const std::string& note = "") {
  if (!ok) RecordFailure(file, line, text + (note.empty() ? std::string() : " (" + note + ")"));
  return ok;
}

}  // namespace smddp_test

#define TEST(name)                                               \
  static void SmddpTest_##name();                                \
  [[maybe_unused]] static const bool smddp_registered_##name =   \
      ::smddp_test::Register(__FILE__, #name, SmddpTest_##name); \
  static void SmddpTest_##name()

// The optional last argument is a std::string that says which case it was.
#define EXPECT(condition, ...)                                              \
  static_cast<void>(::smddp_test::CheckTrue(__FILE__, __LINE__, #condition, \
                                            static_cast<bool>(condition), ##__VA_ARGS__))
#define EXPECT_EQ(a, b, ...) \
  static_cast<void>(::smddp_test::CheckEqual(__FILE__, __LINE__, #a " == " #b, a, b, ##__VA_ARGS__))
#define ASSERT(condition, ...)                                                                 \
  do {                                                                                         \
    if (!::smddp_test::CheckTrue(__FILE__, __LINE__, #condition, static_cast<bool>(condition), \
                                 ##__VA_ARGS__))                                               \
      return;                                                                                  \
  } while (false)
#define ASSERT_EQ(a, b, ...)                                                                      \
  do {                                                                                            \
    if (!::smddp_test::CheckEqual(__FILE__, __LINE__, #a " == " #b, a, b, ##__VA_ARGS__)) return; \
  } while (false)

#endif  // SMDDP_TESTS_CPP_CHECK_H_
