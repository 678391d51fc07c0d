# CMake toolchain of the wheels that `make wheels` packs: zig's clang with its own libc++, linked statically, and headers
# and stubs of glibc 2.28 for any architecture. Environment: SMDDP_ZIG is the program, SMDDP_WHEEL_MACHINE is x86_64 or
# aarch64.
set(SMDDP_ZIG_TARGET "$ENV{SMDDP_WHEEL_MACHINE}-linux-gnu.2.28")
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR "$ENV{SMDDP_WHEEL_MACHINE}")
set(CMAKE_C_COMPILER "$ENV{SMDDP_ZIG}" cc -target ${SMDDP_ZIG_TARGET})
set(CMAKE_CXX_COMPILER "$ENV{SMDDP_ZIG}" c++ -target ${SMDDP_ZIG_TARGET})
# Without an optimization level that CMake passes only later, zig would trap on undefined behaviour.
set(CMAKE_C_FLAGS_INIT "-fno-sanitize=undefined")
set(CMAKE_CXX_FLAGS_INIT "-fno-sanitize=undefined")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-s")
