# With DOFLA_UNITY the sources of a folder are one translation unit: most of the time of a build goes
# into what every unit does again with the templates of JSON and of text formatting. The operations,
# and what uses Highway's dispatch (it includes a file once for every kind of processor), stay on their
# own.
function(compile_by_folder target)
  if(NOT DOFLA_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
    cmake_path(GET name PARENT_PATH folder)
    file(STRINGS ${source} dispatch REGEX "foreach_target")
    if(NOT dispatch AND NOT name MATCHES "cuda" AND NOT folder MATCHES "^dofla/ops")
      string(REPLACE "/" "_" group ${folder})
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
endfunction()
