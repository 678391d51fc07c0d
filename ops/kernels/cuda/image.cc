#include "kernels/cuda/image.h"

#ifdef SMDDP_PACK_IMAGE

// The assembler reads the file: as an array in C++ it would be megabytes of source.
asm(".pushsection .rodata\n"
    ".balign 64\n"
    "smddp_pack_image:\n"
    ".incbin \"" SMDDP_PACK_IMAGE
    "\"\n"
    ".popsection\n");
extern "C" __attribute__((visibility("hidden"))) const char smddp_pack_image[];

namespace smddp {
const void* PackImage() { return smddp_pack_image; }
}  // namespace smddp

#else

namespace smddp {
const void* PackImage() { return nullptr; }
}  // namespace smddp

#endif

namespace smddp {
const char* PackImageText() { return SMDDP_PACK_IMAGE_TEXT; }
}  // namespace smddp
