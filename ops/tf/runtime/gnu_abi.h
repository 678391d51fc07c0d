// Types of libstdc++ as they lie in memory. TensorFlow is built with libstdc++ and hands some of
// its objects over as they are; this library may be built with another standard library, whose
// types of the same names look different. The layouts are part of libstdc++'s ABI, which has not
// changed them since GCC 5; tests/cpp/gnu_abi_test.cc compares them with the real ones.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>

namespace smddp_tf {

// std::function<void()>.
class GnuFunction {
 public:
  GnuFunction() = default;
  // As libstdc++ moves it: what lies inside may be copied byte by byte.
  GnuFunction(GnuFunction&& other) noexcept : manager_(other.manager_), invoker_(other.invoker_) {
    std::memcpy(target_, other.target_, sizeof target_);
    other.manager_ = nullptr;
  }
  GnuFunction& operator=(GnuFunction&&) = delete;
  ~GnuFunction() {
    if (manager_ != nullptr) manager_(target_, target_, kDestroy);
  }

  // Copies a function of TensorFlow's; to be called once. One that throws leaves this empty.
  void CopyFrom(const void* function) {
    const auto& other = *static_cast<const GnuFunction*>(function);
    if (other.manager_ == nullptr) return;
    other.manager_(target_, other.target_, kClone);
    invoker_ = other.invoker_;
    manager_ = other.manager_;
  }

 private:
  enum : int { kClone = 2, kDestroy = 3 };

  alignas(void*) char target_[2 * sizeof(void*)] = {};
  bool (*manager_)(void* to, const void* from, int operation) = nullptr;
  void (*invoker_)(const void* target) = nullptr;
};

// std::string (std::__cxx11::basic_string<char>).
struct GnuString {
  const char* data;
  size_t length;
  union {
    size_t capacity;
    char local[16];  // short texts; `data` points here then
  };

  // A string that can be read and copied, but neither changed nor destroyed by its reader; valid as
  // long as the text.
  static GnuString View(const char* text) {
    GnuString string = {text, std::strlen(text), {0}};
    string.capacity = string.length;
    return string;
  }
};

// std::optional<std::string>.
struct GnuOptionalString {
  GnuString value;
  bool engaged;

  // The owner destroys the string, with operator delete.
  void Set(const char* text) {
    if (engaged) return;
    size_t length = std::strlen(text);
    char* copy = static_cast<char*>(::operator new(length + 1));
    std::memcpy(copy, text, length + 1);
    value = {copy, length, {0}};
    value.capacity = length;
    engaged = true;
  }
};

}  // namespace smddp_tf
