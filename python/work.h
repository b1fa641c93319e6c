// How Python and the library share threads, signals and exceptions.
#pragma once

#include <atomic>
#include <csignal>
#include <exception>

#include <pybind11/pybind11.h>

#include "dofla/core/progress.h"

namespace dofla::python {

// While one lives the library may compute: other threads have the interpreter, and signals that
// Python handles wait. Handlers must not run on the stacks of threads that compute
// (cli/interruption.cc says what happened), neither on this one nor on those of OpenMP. When the
// interpreter ends, it waits until daemon threads have come to the end of a step, and these stop.
class Work {
 public:
  Work();  // throws Error after a fork, which OpenMP's threads do not survive
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

 private:
  sigset_t before_;
  PyThreadState* interpreter_;
};

// A thread that computes has the interpreter while one lives.
class Interpreter {
 public:
  Interpreter();
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

 private:
  PyGILState_STATE before_;
};

// Tells a Python function of the progress of work. What that throws, and Ctrl-C, asks the work to
// stop, in good order, and is thrown again once it has.
class Listener {
 public:
  explicit Listener(pybind11::object callback) : callback_(std::move(callback)) {}  // or None

  Progress progress();  // valid as long as this object
  void rethrow() const;

 private:
  void tell(const ProgressUpdate& update);

  pybind11::object callback_;
  std::exception_ptr thrown_;
  std::atomic<bool> stop_ = false;
};

// For the end of the interpreter; and the exceptions of the library in Python: Error, and
// ValueError for misuse.
void add_end_of_work(pybind11::module_& module);
void add_exceptions(pybind11::module_& module);

// The functions of commands.cc: commands() and run(words, progress, remark).
void add_commands(pybind11::module_& module);

}  // namespace dofla::python
