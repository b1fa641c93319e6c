# The commands, for the binary and for the Python module: both bring the library, one the static and
# one the shared.
find_package(CLI11 REQUIRED)
file(GLOB cli_sources CONFIGURE_DEPENDS cli/*.cc)
list(FILTER cli_sources EXCLUDE REGEX "cli/(main|bus_error)[.]cc$")
add_library(dofla_commands STATIC ${cli_sources})
set_target_properties(dofla_commands PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_compile_features(dofla_commands PUBLIC cxx_std_20)
target_include_directories(dofla_commands PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(dofla_commands PUBLIC ${dofla_public_libraries} CLI11::CLI11)
# Reading arguments needs no more, and took a quarter of the whole build at -O3.
target_compile_options(dofla_commands PRIVATE $<$<CONFIG:Release>:-O1>)
target_precompile_headers(dofla_commands PRIVATE <CLI/CLI.hpp> <fmt/format.h> <nlohmann/json.hpp>)
target_compile_definitions(dofla_commands PRIVATE
  DOFLA_SOURCE_ASSETS="${PROJECT_SOURCE_DIR}/assets"
  DOFLA_INSTALLED_ASSETS="${CMAKE_INSTALL_FULL_DATADIR}/dofla")
# See cmake/unity.cmake; the headers of the parser alone take seconds in every unit.
if(DOFLA_UNITY)
  set_target_properties(dofla_commands PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
endif()

# The binary. It holds the library, so that it runs from wherever it is put.
add_executable(dofla_cli cli/main.cc cli/bus_error.cc)
set_target_properties(dofla_cli PROPERTIES OUTPUT_NAME dofla)
target_compile_options(dofla_cli PRIVATE $<$<CONFIG:Release>:-O1>)
target_link_libraries(dofla_cli PRIVATE dofla_commands dofla)
