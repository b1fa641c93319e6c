# With DOFLA_UNITY the sources of a folder are one translation unit: most of the time of a build goes
# into what every unit does again with the templates of JSON and of text formatting. The operations,
# and what uses Highway's dispatch (it includes a file once for every kind of processor), stay on their
# own.
if(DOFLA_UNITY)
  set_target_properties(dofla PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(source ${library_sources})
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE folder)
    file(STRINGS ${source} dispatch REGEX "foreach_target")
    if(NOT dispatch AND NOT source MATCHES "cuda" AND NOT folder MATCHES "^dofla/ops")
      string(REPLACE "/" "_" group ${folder})
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
endif()
