#include "python/work.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <pthread.h>
#include <unistd.h>

#include "cli/usage_error.h"
#include "dofla/core/error.h"

namespace py = pybind11;

namespace dofla::python {
namespace {

// Those that somebody has installed a handler for, without those that a thread causes itself.
sigset_t handled_signals() {
  sigset_t handled;
  sigemptyset(&handled);
  for (int number = 1; number < 32; ++number) {
    struct sigaction action = {};
    const bool own = number == SIGSEGV || number == SIGBUS || number == SIGFPE ||
                     number == SIGILL || number == SIGTRAP || number == SIGABRT;
    if (!own && ::sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_DFL &&
        action.sa_handler != SIG_IGN)
      sigaddset(&handled, number);
  }
  return handled;
}

// The threads of OpenMP that serve this one have its mask if they begin during work. Others may
// have begun before, numpy's for instance.
bool block_in_team(const sigset_t& signals) {
#pragma omp parallel
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return true;
}

// Threads that compute when the interpreter ends must not go back to it: Python would end them in
// the midst of C++, which ends the process.
struct Workers {
  std::mutex mutex;
  std::condition_variable fewer;
  int count = 0;
  bool interpreter_ends = false;
};
Workers workers;

void begin_work() {
  const std::lock_guard lock(workers.mutex);
  ++workers.count;
}

void end_work() {
  const std::lock_guard lock(workers.mutex);
  --workers.count;
  workers.fewer.notify_all();
}

// Called by a thread that computes, before it takes the interpreter. Does not return at its end.
void stay_away_from_its_end() {
  {
    const std::lock_guard lock(workers.mutex);
    if (!workers.interpreter_ends) return;
  }
  end_work();
  for (;;) ::pause();
}

pid_t working_process() {
  static const pid_t process = ::getpid();
  return process;
}

void wait_for_workers() {
  constexpr std::chrono::seconds kLongest(10);  // a progress function may never return
  const py::gil_scoped_release released;
  if (::getpid() != working_process()) return;
  std::unique_lock lock(workers.mutex);
  workers.interpreter_ends = true;
  workers.fewer.wait_for(lock, kLongest, [] { return workers.count == 0; });
}

void require_own_process() {
  if (::getpid() != working_process())
    fail(
        "dofla has computed in the process that this one was forked from, and its threads are not "
        "here: start processes with multiprocessing's \"spawn\" or \"forkserver\"");
}

// Signals that wait arrive now.
class SignalsArrive {
 public:
  SignalsArrive() {
    const sigset_t handled = handled_signals();
    pthread_sigmask(SIG_UNBLOCK, &handled, &before_);
  }
  ~SignalsArrive() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsArrive(const SignalsArrive&) = delete;
  SignalsArrive& operator=(const SignalsArrive&) = delete;

 private:
  sigset_t before_;
};

py::object to_python(const ProgressUpdate& update) {
  const py::object step = [&]() -> py::object {
    if (update.training == nullptr) return py::none();
    const TrainingStep& training = *update.training;
    return py::module_::import("dofla").attr("TrainingStep")(
        training.step, training.loss, training.learning_rate, training.tokens_per_second,
        training.seconds);
  }();
  return py::module_::import("dofla").attr("Progress")(update.stage, update.done, update.total,
                                                       update.unit, step);
}

void set_python_error(PyObject* type, const char* message) {
  // A message may quote a file that is not UTF-8.
  const py::object text = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(message, static_cast<py::ssize_t>(std::strlen(message)), "replace"));
  PyErr_SetObject(type, text.ptr());
}

}  // namespace

Work::Work() {
  require_own_process();
  const sigset_t handled = handled_signals();
  pthread_sigmask(SIG_BLOCK, &handled, &before_);
  [[maybe_unused]] static thread_local const bool team_is_quiet = block_in_team(handled);
  begin_work();
  interpreter_ = PyEval_SaveThread();
}

Work::~Work() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  stay_away_from_its_end();
  PyEval_RestoreThread(interpreter_);
  end_work();
}

Interpreter::Interpreter() {
  stay_away_from_its_end();
  before_ = PyGILState_Ensure();
}

Interpreter::~Interpreter() {
  PyGILState_Release(before_);
}

Progress Listener::progress() {
  return Progress([this](const ProgressUpdate& update) { tell(update); }, &stop_);
}

void Listener::tell(const ProgressUpdate& update) {
  const SignalsArrive now;
  const Interpreter interpreter;
  if (stop_) return;
  try {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!callback_.is_none()) callback_(to_python(update));
  } catch (const py::error_already_set&) {
    thrown_ = std::current_exception();
    stop_ = true;
  }
}

void Listener::rethrow() const {
  if (thrown_) std::rethrow_exception(thrown_);
}

void add_end_of_work(py::module_& module) {
  module.def("_wait_for_workers", &wait_for_workers);
  py::module_::import("atexit").attr("register")(module.attr("_wait_for_workers"));
}

void add_exceptions(py::module_& module) {
  static const py::exception<Error> error(module, "Error", PyExc_RuntimeError);
  error.attr("__module__") = "dofla";
  error.attr("__doc__") = "What goes wrong with files, disks and devices.";
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(std::move(thrown));
    } catch (const Error& failure) {
      set_python_error(error.ptr(), failure.what());
    } catch (const cli::UsageError& failure) {
      set_python_error(PyExc_ValueError, failure.what());
    } catch (const std::invalid_argument& failure) {
      set_python_error(PyExc_ValueError, failure.what());
    }
  });
}

}  // namespace dofla::python
