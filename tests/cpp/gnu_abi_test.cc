// The library's picture of libstdc++'s types against the real ones. A build with another standard
// library has nothing to compare with.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>  // for move

#include "check.h"
#include "tf/runtime/gnu_abi.h"

#if defined(__GLIBCXX__)

namespace smddp_tf {
namespace {

using Function = std::function<void()>;
static_assert(sizeof(GnuFunction) == sizeof(Function), "std::function");
static_assert(alignof(GnuFunction) == alignof(Function), "std::function");
static_assert(sizeof(GnuString) == sizeof(std::string), "std::string");
static_assert(sizeof(GnuOptionalString) == sizeof(std::optional<std::string>), "std::optional");

TEST(ACopiedFunctionOutlivesItsOriginal) {
  auto shared = std::make_shared<int>(0);
  std::string large(100, 'x');  // too much for the function's own memory
  {
    GnuFunction small_copy, large_copy, empty_copy;
    {
      Function small = [shared] { ++*shared; };
      Function big = [shared, large] { *shared += static_cast<int>(large.size()); };
      small_copy.CopyFrom(&small);
      large_copy.CopyFrom(&big);
      Function empty;
      empty_copy.CopyFrom(&empty);
    }
    EXPECT_EQ(shared.use_count(), 3);
    GnuFunction moved = std::move(small_copy);
    (*reinterpret_cast<Function*>(&moved))();
    (*reinterpret_cast<Function*>(&large_copy))();
    EXPECT_EQ(*shared, 101);
    EXPECT(!*reinterpret_cast<Function*>(&empty_copy), "an empty one stays empty");
  }
  EXPECT_EQ(shared.use_count(), 1);
}

TEST(TextsAreReadAndOwned) {
  for (const char* text : {"", "Host", "a text that is longer than the sixteen bytes inside"}) {
    GnuString view = GnuString::View(text);
    EXPECT_EQ(std::string(*reinterpret_cast<const std::string*>(&view)), std::string(text));

    std::optional<std::string> status;
    auto* set = reinterpret_cast<GnuOptionalString*>(&status);
    set->Set(text);
    ASSERT_EQ(status.has_value(), true);
    EXPECT_EQ(*status, std::string(text));
    set->Set("a second failure");  // the first one is told
    EXPECT_EQ(*status, std::string(text));
    *status += std::string(50, '.');  // the owner may do with it what it likes
  }
}

}  // namespace
}  // namespace smddp_tf

#endif
