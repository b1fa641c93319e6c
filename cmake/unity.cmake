# With DOFLA_UNITY the sources of some folders are one translation unit: most of the time of a build
# goes into what every unit does again with the templates of JSON and of text formatting. What uses
# Highway's dispatch (it includes a file once for every kind of processor) and the CPU's operations,
# whose names are those of their loops, stay on their own.
set(DOFLA_UNITS
    "whole=dofla,dofla/pipeline,dofla/distributed,dofla/core,dofla/model"
    "read=dofla/data,dofla/data/tasks"
    "checkpoint=dofla/checkpoint,dofla/checkpoint/tokenizer"
    "measure=dofla/dof,dofla/plan,dofla/features,dofla/sensitivity"
    "learn=dofla/distill,dofla/train,dofla/linear,dofla/generate"
    "judge=dofla/evaluate,dofla/fidelity"
    "show=dofla/report,dofla/reproduce")

# The unit of a folder: the one above, or its own.
function(unit_of_folder folder result)
  foreach(unit ${DOFLA_UNITS})
    if(unit MATCHES "^([a-z]+)=(.*)$")
      set(name ${CMAKE_MATCH_1})
      string(REPLACE "," ";" folders "${CMAKE_MATCH_2}")
      if(folder IN_LIST folders)
        set(${result} ${name} PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
  string(REPLACE "/" "_" name "${folder}")
  set(${result} ${name} PARENT_SCOPE)
endfunction()

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
    if(NOT dispatch AND NOT name MATCHES "cuda" AND NOT folder MATCHES "^dofla/ops/")
      unit_of_folder("${folder}" unit)
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${unit})
    endif()
  endforeach()
endfunction()
