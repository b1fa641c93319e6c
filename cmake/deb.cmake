# `make package` makes Debian packages of what is installed: dofla, and python3-dofla of the Python package.
install(FILES cmake/copyright CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "The dofla authors <dofla@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_FILE ${PROJECT_SOURCE_DIR}/cmake/description.txt)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# A package a component.
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL dofla)
set(CPACK_DEBIAN_DOFLA_PACKAGE_NAME dofla)
set(CPACK_DEBIAN_DOFLA_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
# For those who build on the library.
set(CPACK_DEBIAN_DOFLA_PACKAGE_RECOMMENDS "libfmt-dev, nlohmann-json3-dev")
set(CPACK_DEBIAN_DOFLA_PACKAGE_SUGGESTS "openmpi-bin")  # mpirun
if(TARGET dofla_python)
  install(FILES cmake/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/python3-dofla COMPONENT python)
  list(APPEND CPACK_COMPONENTS_ALL python)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-dofla)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
  set(CPACK_COMPONENT_PYTHON_DESCRIPTION
      "Linear attention from softmax transformers, in Python\n dofla's models and commands, with numpy arrays.")
  # The module is of one version of Python and of one of the library, which knows what else there must be.
  math(EXPR next_minor "${Python_VERSION_MINOR} + 1")
  set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "dofla (= ${PROJECT_VERSION}), python3-numpy, \
python3 (>= 3.${Python_VERSION_MINOR}), python3 (<< 3.${next_minor})")
endif()
include(CPack)
