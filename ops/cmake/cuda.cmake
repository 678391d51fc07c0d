# The kernels for GPUs (kernels/cuda/*.cu), compiled ahead for each kind of GPU that nvcc knows of those below, and as
# PTX for later ones, into a file each that kernels/cuda/image.cc embeds. Only nvcc is needed: no CUDA library is linked.
#
# SMDDP_NVRTC, a CMake variable or one of the environment, is the path of a libnvrtc.so.12 to compile with instead of nvcc: PyPI has
# CUDA 12, whose code all drivers from 525 on take and which knows sm_70, as NVRTC only.
#
# SMDDP_CUDA=auto, the default, does so where an nvcc is found that works; `on` fails where there is none; with `off` the
# library has no kernels and reduces as it does on a GPU for which they do not load.
set(SMDDP_CUDA auto CACHE STRING "Compile the kernels for GPUs: auto (if nvcc is found), on or off")
# Code of sm_70 runs on sm_75 too, but CUDA 13 does not know the former.
set(SMDDP_CUDA_ARCHITECTURES 70 75 80 86 89 90 100)

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
    set(${problem} "${SMDDP_NVCC} knows none of the GPUs sm_70 to sm_100" PARENT_SCOPE)
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

set(SMDDP_NVRTC "$ENV{SMDDP_NVRTC}" CACHE FILEPATH "libnvrtc.so.12, to compile the kernels for GPUs with; empty: nvcc")

if(SMDDP_CUDA STREQUAL "off")
  set(PROBLEM "SMDDP_CUDA=off")
elseif(SMDDP_NVRTC)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(COMPILE "${Python3_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/cmake/compile_kernels.py" --nvrtc "${SMDDP_NVRTC}")
  execute_process(COMMAND ${COMPILE} --version OUTPUT_VARIABLE NVRTC_SAYS ERROR_VARIABLE PROBLEM RESULT_VARIABLE RESULT)
  if(NOT RESULT EQUAL 0)
    message(FATAL_ERROR "SMDDP_NVRTC is '${SMDDP_NVRTC}', which does not work: ${PROBLEM}")
  endif()
  set(PROBLEM)
elseif(SMDDP_CUDA MATCHES "^(auto|on)$")
  find_program(SMDDP_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  smddp_probe_nvcc(KNOWN PROBLEM)
else()
  message(FATAL_ERROR "SMDDP_CUDA is '${SMDDP_CUDA}'; it must be auto, on or off")
endif()
if(PROBLEM AND SMDDP_CUDA STREQUAL "on")
  message(FATAL_ERROR "SMDDP_CUDA=on, but ${PROBLEM}; put CUDA's nvcc on PATH, or set SMDDP_NVCC to its path")
endif()

# Adds a command that compiles kernels/cuda/${name}.cu, with those headers, to ${name}.image: nvcc's, or a bundle.
function(smddp_compile_kernels name)
  set(IMAGE "${CMAKE_CURRENT_BINARY_DIR}/${name}.image")
  if(SMDDP_NVRTC)
    file(GLOB SHIMS "${CMAKE_CURRENT_SOURCE_DIR}/kernels/cuda/nvrtc/*")
    add_custom_command(
      OUTPUT "${IMAGE}"
      COMMAND ${COMPILE} --include "${CMAKE_CURRENT_SOURCE_DIR}" --include "${CMAKE_CURRENT_SOURCE_DIR}/kernels/cuda/nvrtc"
              --output "${IMAGE}" "${CMAKE_CURRENT_SOURCE_DIR}/kernels/cuda/${name}.cu"
      DEPENDS kernels/cuda/${name}.cu cmake/compile_kernels.py ${SHIMS} ${ARGN}
      VERBATIM)
    set_property(SOURCE kernels/cuda/image.cc APPEND PROPERTY OBJECT_DEPENDS "${IMAGE}")
    return()
  endif()
  # Not compressed: older drivers cannot read how newer compilers do it.
  add_custom_command(
    OUTPUT "${IMAGE}"
    COMMAND "${SMDDP_NVCC}" ${NVCC_FLAGS} --no-compress -fatbin -o "${IMAGE}" "${CMAKE_CURRENT_SOURCE_DIR}/kernels/cuda/${name}.cu"
    DEPENDS kernels/cuda/${name}.cu ${ARGN}
    VERBATIM)
  set_property(SOURCE kernels/cuda/image.cc APPEND PROPERTY OBJECT_DEPENDS "${IMAGE}")
endfunction()

if(PROBLEM)
  message(STATUS "kernels for GPUs: none, ${PROBLEM}")
  set(IMAGE_DEFINITIONS "SMDDP_IMAGE_TEXT=\"none: built without nvcc (${PROBLEM})\"")
else()
  if(SMDDP_NVRTC)
    # "12.9 sm_70 sm_75 ..."
    string(REGEX MATCH "^([0-9.]+) (sm_([0-9]+)[^\n]*)" IGNORED "${NVRTC_SAYS}")
    set(NVCC_VERSION "NVRTC ${CMAKE_MATCH_1}")
    set(IMAGE_TEXT "${CMAKE_MATCH_2} ")
    set(FIRST "${CMAKE_MATCH_3}")
    message(STATUS "kernels for GPUs: ${IMAGE_TEXT}by ${NVCC_VERSION}")
  else()
    execute_process(COMMAND "${SMDDP_NVCC}" --version OUTPUT_VARIABLE NVCC_VERSION)
    string(REGEX MATCH "V([0-9.]+)" IGNORED "${NVCC_VERSION}")
    set(NVCC_VERSION "${CMAKE_MATCH_1}")
    # As on the CPU, each operation rounds by itself, and subnormals stay: nvcc would else multiply and add at once.
    set(NVCC_FLAGS -std=c++17 -O3 -fmad=false -prec-div=true -ftz=false)
    # Some versions warn that the next one will not know a GPU.
    list(APPEND NVCC_FLAGS -Werror all-warnings -Wno-deprecated-gpu-targets "-I${CMAKE_CURRENT_SOURCE_DIR}")
    set(IMAGE_TEXT)
    foreach(ARCHITECTURE ${KNOWN})
      list(APPEND NVCC_FLAGS -gencode "arch=compute_${ARCHITECTURE},code=sm_${ARCHITECTURE}")
      string(APPEND IMAGE_TEXT "sm_${ARCHITECTURE} ")
    endforeach()
    list(GET KNOWN 0 FIRST)
    list(APPEND NVCC_FLAGS -gencode "arch=compute_${FIRST},code=compute_${FIRST}")
    message(STATUS "kernels for GPUs: ${IMAGE_TEXT}by ${SMDDP_NVCC}")
    set(NVCC_VERSION "nvcc ${NVCC_VERSION}")
  endif()
  set(WORD_HEADERS kernels/cuda/words.h kernels/half.h)
  smddp_compile_kernels(pack kernels/cuda/pack_body.h kernels/cuda/pack.h ${WORD_HEADERS})
  smddp_compile_kernels(compress kernels/cuda/int8_body.h kernels/cuda/topk_select_body.h kernels/cuda/topk_sum_body.h
    kernels/cuda/compress.h kernels/cuda/lanes.h kernels/int8.h kernels/magnitude.h ${WORD_HEADERS})
  set(IMAGE_DEFINITIONS "SMDDP_PACK_IMAGE=\"${CMAKE_CURRENT_BINARY_DIR}/pack.image\""
      "SMDDP_COMPRESS_IMAGE=\"${CMAKE_CURRENT_BINARY_DIR}/compress.image\""
      "SMDDP_IMAGE_TEXT=\"${IMAGE_TEXT}and compute_${FIRST}, by ${NVCC_VERSION}\"")
endif()
set_source_files_properties(kernels/cuda/image.cc PROPERTIES COMPILE_DEFINITIONS "${IMAGE_DEFINITIONS}")
