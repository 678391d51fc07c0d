# The kernels for GPUs (kernels/cuda/pack.cu), compiled ahead for each kind of GPU below that the compiler knows, and as PTX of the
# first of them for others, into a file that kernels/cuda/image.cc embeds. No CUDA library is linked.
#
# The compiler is the NVRTC that SMDDP_NVRTC, a CMake variable or one of the environment, is the path of (libnvrtc.so.12), else an
# nvcc. PyPI has no nvcc of CUDA 12, whose code drivers from 525 on take and which knows sm_70.
#
# SMDDP_CUDA=auto, the default, compiles them where there is one that works; `on` fails where there is none; with `off` the
# library has no kernels and reduces as it does on a GPU for which they do not load.
set(SMDDP_CUDA auto CACHE STRING "Compile the kernels for GPUs: auto (if there is a compiler), on or off")
set(SMDDP_NVRTC "$ENV{SMDDP_NVRTC}" CACHE FILEPATH "libnvrtc.so.12, to compile the kernels for GPUs with; empty: nvcc")
# Code of sm_70 runs on sm_75 too, but CUDA 13 does not know the former.
set(SMDDP_CUDA_ARCHITECTURES 70 75 80 86 89 90 100 120)
# As on the CPU, each operation rounds by itself, and subnormals stay: the compiler would else multiply and add at once.
set(ROUNDING -fmad=false -prec-div=true -ftz=false)

# Sets ${architectures} to those of the list that nvcc knows, and ${problem} to why it cannot be used, or "".
function(smddp_probe_nvcc architectures problem)
  set(${architectures} "" PARENT_SCOPE)
  if(NOT SMDDP_NVCC)
    set(${problem} "no nvcc was found" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND "${SMDDP_NVCC}" --list-gpu-code OUTPUT_VARIABLE CODES ERROR_QUIET RESULT_VARIABLE RESULT)
  string(REGEX MATCHALL "sm_[0-9]+" CODES "${CODES}")
  set(KNOWN)
  foreach(ARCHITECTURE ${SMDDP_CUDA_ARCHITECTURES})
    if("sm_${ARCHITECTURE}" IN_LIST CODES)
      list(APPEND KNOWN ${ARCHITECTURE})
    endif()
  endforeach()
  if(NOT RESULT EQUAL 0 OR NOT KNOWN)
    set(${problem} "${SMDDP_NVCC} knows none of the GPUs sm_70 to sm_120" PARENT_SCOPE)
    return()
  endif()
  # It may lack a C++ compiler that it accepts.
  file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/probe.cu" "#include <cstdint>\nextern \"C\" __global__ void probe() {}\n")
  list(GET KNOWN 0 FIRST)
  execute_process(
    COMMAND "${SMDDP_NVCC}" -std=c++17 -cubin -arch=sm_${FIRST} -o "${CMAKE_CURRENT_BINARY_DIR}/probe.cubin"
            "${CMAKE_CURRENT_BINARY_DIR}/probe.cu"
    OUTPUT_VARIABLE SAID ERROR_VARIABLE SAID RESULT_VARIABLE RESULT)
  if(NOT RESULT EQUAL 0)
    string(REGEX REPLACE "[\r\n].*" "" SAID "${SAID}")
    set(${problem} "${SMDDP_NVCC} does not work: ${SAID}" PARENT_SCOPE)
    return()
  endif()
  set(${architectures} "${KNOWN}" PARENT_SCOPE)
  set(${problem} "" PARENT_SCOPE)
endfunction()

# Sets ${architectures} to those of the list that NVRTC knows, and ${version} to its version.
function(smddp_ask_nvrtc architectures version)
  execute_process(COMMAND ${NVRTC} --version OUTPUT_VARIABLE SAYS OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_VARIABLE ERROR RESULT_VARIABLE RESULT)
  if(NOT RESULT EQUAL 0)
    message(FATAL_ERROR "SMDDP_NVRTC is '${SMDDP_NVRTC}', which does not work: ${ERROR}")
  endif()
  separate_arguments(SAYS)  # "12.9 70 75 ..."
  list(POP_FRONT SAYS NUMBER)
  set(${architectures} "${SAYS}" PARENT_SCOPE)
  set(${version} "NVRTC ${NUMBER}" PARENT_SCOPE)
endfunction()

if(NOT SMDDP_CUDA MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "SMDDP_CUDA is '${SMDDP_CUDA}'; it must be auto, on or off")
elseif(SMDDP_CUDA STREQUAL "off")
  set(PROBLEM "SMDDP_CUDA=off")
elseif(SMDDP_NVRTC)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(NVRTC "${Python3_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/cmake/compile_kernels.py" --nvrtc "${SMDDP_NVRTC}"
    --architectures ${SMDDP_CUDA_ARCHITECTURES})
  smddp_ask_nvrtc(KNOWN COMPILER)
  set(INCLUDES "${CMAKE_CURRENT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}/kernels/cuda/nvrtc")
  list(JOIN ROUNDING " " FLAGS)
  set(COMPILE ${NVRTC} --include ${INCLUDES} "--flags=${FLAGS}")
  file(GLOB COMPILER_FILES "${CMAKE_CURRENT_SOURCE_DIR}/kernels/cuda/nvrtc/*")
  list(APPEND COMPILER_FILES cmake/compile_kernels.py)
else()
  find_program(SMDDP_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  smddp_probe_nvcc(KNOWN PROBLEM)
endif()
if(PROBLEM AND SMDDP_CUDA STREQUAL "on")
  message(FATAL_ERROR "SMDDP_CUDA=on, but ${PROBLEM}; put CUDA's nvcc on PATH, or set SMDDP_NVCC, or SMDDP_NVRTC, to its path")
endif()

# Adds a command that compiles kernels/cuda/${name}.cu, with those headers, to ${name}.image.
function(smddp_compile_kernels name)
  set(IMAGE "${CMAKE_CURRENT_BINARY_DIR}/${name}.image")
  add_custom_command(
    OUTPUT "${IMAGE}"
    COMMAND ${COMPILE} -o "${IMAGE}" "${CMAKE_CURRENT_SOURCE_DIR}/kernels/cuda/${name}.cu"
    DEPENDS kernels/cuda/${name}.cu ${COMPILER_FILES} ${ARGN}
    VERBATIM)
  set_property(SOURCE kernels/cuda/image.cc APPEND PROPERTY OBJECT_DEPENDS "${IMAGE}")
endfunction()

# Sets ${compile} to nvcc's command for the GPUs that it knows, and ${version} to its version.
function(smddp_set_nvcc compile version)
  execute_process(COMMAND "${SMDDP_NVCC}" --version OUTPUT_VARIABLE SAYS)
  string(REGEX MATCH "V([0-9.]+)" IGNORED "${SAYS}")
  set(${version} "nvcc ${CMAKE_MATCH_1}" PARENT_SCOPE)
  # Some versions warn that the next one will not know a GPU.
  set(FLAGS -std=c++17 -O3 ${ROUNDING} -Werror all-warnings -Wno-deprecated-gpu-targets "-I${CMAKE_CURRENT_SOURCE_DIR}")
  foreach(ARCHITECTURE ${KNOWN})
    list(APPEND FLAGS -gencode "arch=compute_${ARCHITECTURE},code=sm_${ARCHITECTURE}")
  endforeach()
  list(GET KNOWN 0 FIRST)
  list(APPEND FLAGS -gencode "arch=compute_${FIRST},code=compute_${FIRST}")
  # Not compressed: older drivers cannot read how newer compilers do it.
  set(${compile} "${SMDDP_NVCC}" ${FLAGS} --no-compress -fatbin PARENT_SCOPE)
endfunction()

if(PROBLEM)
  message(STATUS "kernels for GPUs: none, ${PROBLEM}")
  set(IMAGE_DEFINITIONS "SMDDP_IMAGE_TEXT=\"none: built without nvcc (${PROBLEM})\"")
else()
  if(NOT COMPILE)
    smddp_set_nvcc(COMPILE COMPILER)
  endif()
  list(TRANSFORM KNOWN PREPEND "sm_" OUTPUT_VARIABLE GPUS)
  list(JOIN GPUS " " GPUS)
  list(GET KNOWN 0 FIRST)
  message(STATUS "kernels for GPUs: ${GPUS} by ${COMPILER}")
  smddp_compile_kernels(pack kernels/cuda/pack_body.h kernels/cuda/pack.h kernels/cuda/words.h kernels/half.h)
  set(IMAGE_DEFINITIONS "SMDDP_PACK_IMAGE=\"${CMAKE_CURRENT_BINARY_DIR}/pack.image\""
      "SMDDP_IMAGE_TEXT=\"${GPUS} and compute_${FIRST}, by ${COMPILER}\"")
endif()
set_source_files_properties(kernels/cuda/image.cc PROPERTIES COMPILE_DEFINITIONS "${IMAGE_DEFINITIONS}")
