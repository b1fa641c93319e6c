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
# Ranks talk through MPI, without which there is one.
if(DOFLA_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # its C functions are all that is used
  find_package(MPI QUIET COMPONENTS CXX)
  if(NOT MPI_CXX_FOUND)
    message(STATUS "No MPI found: dofla will run in one process (libopenmpi-dev and openmpi-bin have it)")
    set(DOFLA_MPI OFF)
  endif()
endif()

# Ranks with a GPU each exchange tensors through NCCL, without which these go through the memory of
# the CPU.
if(DOFLA_CUDA)
  find_package(CUDAToolkit REQUIRED)
endif()
if(DOFLA_NCCL AND DOFLA_CUDA AND DOFLA_MPI)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    message(STATUS "Found NCCL: ${NCCL_LIBRARY}")
  else()
    message(STATUS "No NCCL found: GPUs of several processes will exchange tensors through the memory of the CPU (libnccl-dev has it)")
    set(DOFLA_NCCL OFF)
  endif()
else()
  set(DOFLA_NCCL OFF)
endif()

# The headers use the public ones.
set(dofla_public_libraries fmt::fmt nlohmann_json::nlohmann_json OpenMP::OpenMP_CXX)
set(dofla_private_libraries
    ${DNNL_LIBRARY} hwy::hwy PkgConfig::pcre2 PkgConfig::utf8proc PkgConfig::zstd
    PkgConfig::lapacke PkgConfig::openblas ZLIB::ZLIB)
if(DOFLA_MPI)
  list(APPEND dofla_private_libraries MPI::MPI_CXX)
endif()
if(DOFLA_NCCL)
  list(APPEND dofla_private_libraries ${NCCL_LIBRARY})
endif()
if(DOFLA_CUDA)
  list(APPEND dofla_private_libraries CUDA::cudart_static CUDA::cublasLt)
endif()
