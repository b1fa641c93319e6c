# The binary. It holds the library, so that it runs from wherever it is put.
find_package(CLI11 REQUIRED)
file(GLOB cli_sources CONFIGURE_DEPENDS cli/*.cc)
add_executable(dofla_cli ${cli_sources})
set_target_properties(dofla_cli PROPERTIES OUTPUT_NAME dofla)
target_link_libraries(dofla_cli PRIVATE dofla CLI11::CLI11)
# Reading arguments needs no more, and took a quarter of the whole build at -O3.
target_compile_options(dofla_cli PRIVATE $<$<CONFIG:Release>:-O1>)
target_precompile_headers(dofla_cli PRIVATE <CLI/CLI.hpp> <fmt/format.h> <nlohmann/json.hpp>)
target_compile_definitions(dofla_cli PRIVATE
  DOFLA_SOURCE_ASSETS="${PROJECT_SOURCE_DIR}/assets"
  DOFLA_INSTALLED_ASSETS="${CMAKE_INSTALL_FULL_DATADIR}/dofla")
# See cmake/unity.cmake; the headers of the parser alone take seconds in every unit.
if(DOFLA_UNITY)
  set_target_properties(dofla_cli PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
endif()
