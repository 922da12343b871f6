# rmsnorm_<runtime>.json, beside the installed libraries: the SHA-256 of each, and what it was
# built with.
# Python compares it with a library before that is loaded, and with the version of the package.
set(RMSNORM_EXPORT_VERSION 0.1.0)
set(manifest_template ${CMAKE_CURRENT_LIST_DIR}/manifest.json.in)

# install_with_manifest(<component> <library target>...): cmake --install <build> --component ...
function(install_with_manifest component)
  set(cuda "${CMAKE_CUDA_COMPILER_VERSION}")
  set(architectures "${CMAKE_CUDA_ARCHITECTURES}")
  set(tensorrt "")
  if(component STREQUAL "onnxruntime")
    set(cuda "")
    set(architectures "${CMAKE_SYSTEM_PROCESSOR}")
  elseif(component STREQUAL "tensorrt")
    set(tensorrt "${TENSORRT_MAJOR}.${TENSORRT_MINOR}")
  endif()
  set(facts ${CMAKE_CURRENT_BINARY_DIR}/${component}.json)
  configure_file(${manifest_template} ${facts} @ONLY)

  install(TARGETS ${ARGN} LIBRARY DESTINATION lib COMPONENT ${component})
  set(names "")
  foreach(target IN LISTS ARGN)
    string(APPEND names " $<TARGET_FILE_NAME:${target}>")
  endforeach()
  install(CODE "
    set(lib \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib\")
    file(READ \"${facts}\" manifest)
    foreach(name${names})
      file(SHA256 \"\${lib}/\${name}\" digest)
      string(JSON manifest SET \"\${manifest}\" libraries \${name} \"\\\"\${digest}\\\"\")
    endforeach()
    file(WRITE \"\${lib}/rmsnorm_${component}.json\" \"\${manifest}\")" COMPONENT ${component})
endfunction()
