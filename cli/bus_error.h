// A file that another program shortens while it is mapped ends a process with SIGBUS and no word.
#pragma once

namespace dofla::cli {

// From now on one line on standard error says which file it was, and the exit code is 1.
void explain_bus_errors();

}  // namespace dofla::cli
