# The Python module, for Debian's Python, whose pybind11 and numpy it needs (-DPython_ROOT_DIR=DIR takes another).
# It is made of the commands and the shared library; nothing else needs Python.
if(NOT DOFLA_SHARED OR NOT DOFLA_CLI)
  message(WARNING "No Python module: it needs DOFLA_SHARED and DOFLA_CLI, which `make python` sets")
  return()
endif()
if(NOT DEFINED Python_ROOT_DIR)
  set(Python_ROOT_DIR /usr)
endif()
set(Python_FIND_STRATEGY LOCATION)
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module NumPy)
find_package(pybind11 REQUIRED)

pybind11_add_module(dofla_python MODULE NO_EXTRAS python/commands.cc python/module.cc python/work.cc)
set(python_folder ${PROJECT_BINARY_DIR}/python/dofla)
# An installation can be moved: the library is found from where the module is.
set(python_install_folder lib/python3/dist-packages/dofla)
file(RELATIVE_PATH library_from_module ${CMAKE_INSTALL_PREFIX}/${python_install_folder} ${CMAKE_INSTALL_FULL_LIBDIR})
set_target_properties(dofla_python PROPERTIES OUTPUT_NAME _dofla LIBRARY_OUTPUT_DIRECTORY ${python_folder}
                      INSTALL_RPATH $ORIGIN/${library_from_module})
target_compile_options(dofla_python PRIVATE $<$<CONFIG:Release>:-O1>)
target_link_libraries(dofla_python PRIVATE dofla_commands dofla_shared)

# The package beside it, with the types of its functions.
file(GLOB python_sources CONFIGURE_DEPENDS python/dofla/*.py python/dofla/*.pyi python/dofla/py.typed)
add_custom_command(OUTPUT ${python_folder}/_functions.pyi
  COMMAND ${CMAKE_COMMAND} -E copy ${python_sources} ${python_folder}
  COMMAND ${CMAKE_COMMAND} -E env PYTHONDONTWRITEBYTECODE=1
          ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/python/stubs.py ${python_folder}
  DEPENDS dofla_python ${python_sources} python/stubs.py)
add_custom_target(python_package ALL DEPENDS ${python_folder}/_functions.pyi)

if(DOFLA_INSTALL)
  install(TARGETS dofla_python LIBRARY DESTINATION ${python_install_folder} COMPONENT python)
  install(FILES ${python_sources} ${python_folder}/_functions.pyi
          DESTINATION ${python_install_folder} COMPONENT python)
endif()
