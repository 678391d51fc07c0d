#include "kernels/cuda/image.h"

#ifdef SMDDP_PACK_IMAGE

// The assembler reads the files: as arrays in C++ they would be megabytes of source.
#define SMDDP_EMBED(symbol, file) \
  asm(".pushsection .rodata\n"    \
      ".balign 64\n" #symbol      \
      ":\n"                       \
      ".incbin \"" file           \
      "\"\n"                      \
      ".popsection\n");           \
  extern "C" __attribute__((visibility("hidden"))) const char symbol[];

SMDDP_EMBED(smddp_pack_image, SMDDP_PACK_IMAGE)

namespace smddp {
const void* PackImage() { return smddp_pack_image; }
}  // namespace smddp

#else

namespace smddp {
const void* PackImage() { return nullptr; }
}  // namespace smddp

#endif

namespace smddp {
const char* ImageText() { return SMDDP_IMAGE_TEXT; }
}  // namespace smddp
