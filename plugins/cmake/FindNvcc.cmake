# Enables CUDA with the nvcc that the caller names, and chooses the architectures.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  foreach(home "${CUDA_HOME}" "$ENV{CUDA_HOME}")
    if(home AND NOT EXISTS "${home}/bin/nvcc")
      message(FATAL_ERROR "There is no bin/nvcc in CUDA_HOME, ${home}. Name the folder of a CUDA "
        "installation, or nvidia/cu13 in the site-packages of a Python that has nvidia-cuda-nvcc.")
    endif()
    if(home AND NOT CMAKE_CUDA_COMPILER)
      set(CMAKE_CUDA_COMPILER "${home}/bin/nvcc" CACHE FILEPATH "CUDA compiler")
    endif()
  endforeach()
endif()

set(chosen OFF)
if(DEFINED CMAKE_CUDA_ARCHITECTURES OR DEFINED ENV{CUDAARCHS})
  set(chosen ON)
endif()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "No working nvcc was found on PATH, in CUDACXX or in CUDA_HOME. Install CUDA "
    "12.0 or later, or into a Python environment: pip install nvidia-cuda-nvcc "
    "nvidia-cuda-runtime nvidia-cuda-cccl, and pass -DCUDA_HOME=<site-packages>/nvidia/cu13.")
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
