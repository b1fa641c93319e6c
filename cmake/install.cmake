# What `cmake --install` puts where: the library with its headers, a CMake package and a pkg-config
# file; the binary with its assets, man pages and completion. Nothing in it knows the prefix, so that
# an installation can be moved.
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME dofla)  # beside the Python package, cmake/python.cmake

# dofla::dofla is the shared library; dofla::static, a component, asks for the libraries it is built on.
set_target_properties(dofla PROPERTIES EXPORT_NAME static)
install(TARGETS dofla EXPORT static)
if(DOFLA_SHARED)
  set_target_properties(dofla_shared PROPERTIES EXPORT_NAME dofla)
  install(TARGETS dofla_shared EXPORT shared)
endif()
set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/dofla)
install(EXPORT static NAMESPACE dofla:: FILE dofla-static.cmake DESTINATION ${config_folder})
if(DOFLA_SHARED)
  install(EXPORT shared NAMESPACE dofla:: FILE dofla-shared.cmake DESTINATION ${config_folder})
endif()
configure_package_config_file(cmake/dofla-config.cmake.in dofla-config.cmake
                              INSTALL_DESTINATION ${config_folder})
write_basic_package_version_file(dofla-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dofla-config.cmake ${PROJECT_BINARY_DIR}/dofla-config-version.cmake
              cmake/dependencies.cmake
        DESTINATION ${config_folder})

file(RELATIVE_PATH prefix_from_pkgconfig ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/dofla.pc.in dofla.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/dofla.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Headers of a device's own code are not for others.
install(DIRECTORY dofla/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dofla
        FILES_MATCHING PATTERN "*.h"
        PATTERN cpu EXCLUDE PATTERN cuda EXCLUDE PATTERN no_cuda EXCLUDE PATTERN transformers EXCLUDE
        PATTERN http_connection.h EXCLUDE PATTERN transport.h EXCLUDE
        PATTERN gpu_link.h EXCLUDE)

if(DOFLA_CLI)
  install(TARGETS dofla_cli)
  install(DIRECTORY assets/ DESTINATION ${CMAKE_INSTALL_DATADIR}/dofla)
  install(FILES cli/completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
          RENAME dofla)
  # The man pages say what --help says.
  find_package(Python3 COMPONENTS Interpreter)
  if(Python3_FOUND)
    add_custom_command(OUTPUT man/dofla.1
      COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/man_pages.py
              $<TARGET_FILE:dofla_cli> ${PROJECT_BINARY_DIR}/man
      DEPENDS dofla_cli tools/man_pages.py)
    add_custom_target(man_pages ALL DEPENDS man/dofla.1)
    install(DIRECTORY ${PROJECT_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  endif()
endif()
