# Enables CUDA with the nvcc of the toolkit that is named, or found, and chooses the architectures.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  if(NOT CUDAToolkit_ROOT)
    set(CUDAToolkit_ROOT "$ENV{CUDA_HOME}")
  endif()
  # In PyPI's wheels it finds nvcc, but no libcudart.so, which is not needed.
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_NVCC_EXECUTABLE)
    set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}" CACHE FILEPATH "CUDA compiler")
  elseif(CUDAToolkit_ROOT)
    message(FATAL_ERROR "There is no nvcc in CUDAToolkit_ROOT or CUDA_HOME, ${CUDAToolkit_ROOT}. "
      "Name the folder of a CUDA installation, or nvidia/cu13 in the site-packages of a Python "
      "that has nvidia-cuda-nvcc.")
  endif()
endif()

set(chosen OFF)
if(DEFINED CMAKE_CUDA_ARCHITECTURES OR DEFINED ENV{CUDAARCHS})
  set(chosen ON)
endif()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "No working nvcc was found on PATH, in CUDACXX, CUDAToolkit_ROOT or CUDA_HOME. Install CUDA "
    "12.0 or later, or into a Python environment: pip install nvidia-cuda-nvcc "
    "nvidia-cuda-runtime nvidia-cuda-cccl, and pass -DCUDAToolkit_ROOT=<site-packages>/nvidia/cu13.")
endif()
enable_language(CUDA)

if(NOT chosen)
  set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 87-real 89-real 90-real 100-real 110-real 120)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
    list(REMOVE_ITEM CMAKE_CUDA_ARCHITECTURES 110-real)
  endif()
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
    message(STATUS "nvcc ${CMAKE_CUDA_COMPILER_VERSION} does not know sm_100 and sm_120 (12.8 "
      "does): newer GPUs run the PTX of sm_90")
    set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 87-real 89-real 90)
  endif()
  # The cache has the compiler's own default, which another configuration would take.
  set(CMAKE_CUDA_ARCHITECTURES ${CMAKE_CUDA_ARCHITECTURES} CACHE STRING "CUDA architectures" FORCE)
endif()
message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION}, ${CMAKE_CUDA_COMPILER}, for "
  "${CMAKE_CUDA_ARCHITECTURES}")
