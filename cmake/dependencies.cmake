# What the library is built on: Debian packages, listed in tools/install_packages.sh. A project that
# links the installed static library reads this file too (dofla-config.cmake).
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
# Debian's dnnl package configuration asks for the OpenCL headers, which a CPU build has no use for.
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_path(DNNL_INCLUDE_DIR dnnl.h REQUIRED)
find_package(hwy REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(lapacke REQUIRED IMPORTED_TARGET lapacke)
pkg_check_modules(openblas REQUIRED IMPORTED_TARGET openblas)
find_package(ZLIB REQUIRED)

# The headers use the public ones.
set(dofla_public_libraries fmt::fmt nlohmann_json::nlohmann_json OpenMP::OpenMP_CXX)
set(dofla_private_libraries
    ${DNNL_LIBRARY} hwy::hwy PkgConfig::pcre2 PkgConfig::utf8proc PkgConfig::zstd
    PkgConfig::lapacke PkgConfig::openblas ZLIB::ZLIB)
if(DOFLA_CUDA)
  find_package(CUDAToolkit REQUIRED)
  list(APPEND dofla_private_libraries CUDA::cudart_static CUDA::cublasLt)
endif()
