# `make package` makes a Debian package of what is installed.
install(FILES cmake/copyright CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "The dofla authors <dofla@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_FILE ${PROJECT_SOURCE_DIR}/cmake/description.txt)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
# For those who build on the library.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libfmt-dev, nlohmann-json3-dev")
include(CPack)
