# Sets TENSORRT_INCLUDE_DIR to the folder with NvInferRuntime.h, or says how to get it.
set(named "${TENSORRT_INCLUDE_DIR}")
if(NOT named)
  set(named "$ENV{TENSORRT_INCLUDE_DIR}")
endif()
set(root "${TENSORRT_ROOT}")
if(NOT root)
  set(root "$ENV{TENSORRT_ROOT}")
endif()

if(named)
  set(folders "${named}")
elseif(root)
  set(folders "${root}/include")
else()
  set(folders /usr/local/tensorrt/include /usr/local/TensorRT/include /opt/tensorrt/include
    /usr/include /usr/include/${CMAKE_LIBRARY_ARCHITECTURE} /usr/local/include)
endif()

set(TENSORRT_INCLUDE_DIR "")
foreach(folder IN LISTS folders)
  if(EXISTS "${folder}/NvInferRuntime.h" AND NOT TENSORRT_INCLUDE_DIR)
    get_filename_component(TENSORRT_INCLUDE_DIR "${folder}" ABSOLUTE)
  endif()
endforeach()

if(NOT TENSORRT_INCLUDE_DIR)
  list(JOIN folders " " looked)
  set(text "TensorRT's headers were not found: no NvInferRuntime.h in ${looked}. "
    "TENSORRT_INCLUDE_DIR or TENSORRT_ROOT names other places.")
  list(JOIN text "" text)
  if(named OR root OR RMSNORM_TENSORRT)
    message(FATAL_ERROR "${text}")
  endif()
  message(WARNING "${text} Only the CUDA kernels will be compiled, no plugin library.")
  return()
endif()

# The version is a number, or since 10.8 the name of a macro that is one.
foreach(part MAJOR MINOR)
  file(STRINGS "${TENSORRT_INCLUDE_DIR}/NvInferVersion.h" line
    REGEX "define (NV_TENSORRT_${part}|TRT_${part}_ENTERPRISE) +[0-9]+")
  string(REGEX MATCH "[0-9]+" TENSORRT_${part} "${line}")
endforeach()
set(version "${TENSORRT_MAJOR}.${TENSORRT_MINOR}")
message(STATUS "TensorRT ${version} headers, ${TENSORRT_INCLUDE_DIR}")
if(version VERSION_LESS 10.8)
  message(FATAL_ERROR "The headers in ${TENSORRT_INCLUDE_DIR} are of TensorRT ${version}; the "
    "plugin needs 10.8 or later.")
endif()
