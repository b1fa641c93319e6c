// dofla._dofla: what dofla/*.py is made of. A model and its generations; work.h and commands.cc
// have the rest.
#include <cstring>
#include <memory>
#include <mutex>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "cli/assets.h"
#include "cli/generate_options.h"
#include "cli/program.h"
#include "dofla/core/version.h"
#include "dofla/generate/text_generator.h"
#include "dofla/linear/linear_model.h"
#include "python/work.h"

namespace py = pybind11;

namespace dofla::python {
namespace {

using Ids = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

struct LoadedModel {
  Checkpoint checkpoint;
  std::optional<Tokenizer> tokenizer;
  Transformer model;
  std::mutex busy;  // one thread computes with a model at a time

  LoadedModel(const std::string& folder, const std::string& device)
      : checkpoint(folder),
        tokenizer(Tokenizer::find(folder)),
        model(load_model(checkpoint, Device::chosen(named<DeviceChoice>(device)))) {}

  Tokenizer require_tokenizer() const {
    return tokenizer ? *tokenizer : Tokenizer::load(checkpoint.folder());  // says what is missing
  }
};

// Whole numbers of any type and layout, with one axis up to `axes`.
Ids read_ids(const py::array& found, py::ssize_t axes) {
  require(found.size() > 0, "ids: expected token ids, found none");
  require(found.dtype().kind() == 'i' || found.dtype().kind() == 'u',
          "ids: expected whole numbers, found {}", py::str(found.dtype()).cast<std::string>());
  require(found.ndim() >= 1 && found.ndim() <= axes, "ids: expected {}, found {} axes",
          axes == 1 ? "one sequence" : "[tokens] or [batch, tokens]", found.ndim());
  return Ids(found);
}

TokenIds to_vector(const Ids& ids) {
  return {ids.data(), ids.data() + ids.size()};
}

// numpy keeps the tensor's memory, whatever becomes of the model.
py::array to_numpy(const Tensor& tensor) {
  auto kept = std::make_unique<Tensor>(tensor);
  const float* data = std::as_const(*kept).data<float>();
  const py::capsule owner(kept.release(), [](void* gone) { delete static_cast<Tensor*>(gone); });
  return py::array_t<float>(std::vector<py::ssize_t>(tensor.shape().begin(), tensor.shape().end()),
                            data, owner);
}

py::array logits(LoadedModel& self, const py::array& array) {
  const Ids ids = read_ids(array, 2);
  const int64_t tokens = ids.shape(ids.ndim() - 1), batch = ids.size() / tokens;
  Tensor out;
  {
    const Work work;
    const std::lock_guard lock(self.busy);
    Tensor rows({batch, tokens}, DType::kI64);
    std::memcpy(rows.mutable_raw(), ids.data(), static_cast<size_t>(rows.bytes()));
    const Tensor hidden = self.model.forward(rows);  // [B, T, C]
    out = self.model.logits(hidden.reshape({batch * tokens, hidden.size(2)})).to(Device());
    self.checkpoint.require_unchanged();
  }
  const int64_t vocabulary = out.size(1);
  return to_numpy(
      out.reshape(ids.ndim() == 1 ? Shape{tokens, vocabulary} : Shape{batch, tokens, vocabulary}));
}

// A continuation, token by token. It computes when it is asked and at no other time: whoever drops
// it has dropped all of it.
class Generation {
 public:
  Generation(std::shared_ptr<LoadedModel> model, const Prompt& prompt,
             const GenerateOptions& options)
      : model_(std::move(model)),
        generator_(model_->model,
                   prompt.text.empty() ? model_->tokenizer : model_->require_tokenizer(), prompt,
                   options) {}

  std::optional<Piece> next() {
    const std::lock_guard lock(model_->busy);
    std::optional<Piece> piece = generator_.next();
    if (generator_.done()) model_->checkpoint.require_unchanged();
    return piece;
  }

  std::optional<std::string> stopped() const {
    const std::lock_guard lock(model_->busy);
    if (!generator_.done()) return std::nullopt;
    return std::string(name(generator_.result().stopped));
  }

 private:
  std::shared_ptr<LoadedModel> model_;
  TextGenerator generator_;
};

// The words are those of the command line that say how to draw.
std::unique_ptr<Generation> generate(const std::shared_ptr<LoadedModel>& self,
                                     const std::string& text, const std::optional<py::array>& ids,
                                     const std::vector<std::string>& words) {
  Prompt prompt = {.text = text};
  if (ids) prompt.ids = to_vector(read_ids(*ids, 1));
  CLI::App parser;
  cli::DrawingOptions drawing;
  drawing.add(parser);
  cli::parse(parser, words);
  const Work work;
  const std::lock_guard lock(self->busy);
  return std::make_unique<Generation>(self, prompt, drawing.value());
}

py::tuple next_piece(Generation& generation) {
  std::optional<Piece> piece;
  {
    const Work work;
    piece = generation.next();
  }
  if (!piece) throw py::stop_iteration();
  return py::make_tuple(piece->id, piece->text);
}

py::array encode(const LoadedModel& self, const std::string& text, bool add_special) {
  TokenIds ids;
  {
    const py::gil_scoped_release released;
    ids = self.require_tokenizer().encode(text, add_special);
  }
  return Ids(static_cast<py::ssize_t>(ids.size()), ids.data());
}

std::string decode(const LoadedModel& self, const py::array& array, bool skip_special) {
  const TokenIds ids = array.size() == 0 ? TokenIds() : to_vector(read_ids(array, 1));
  const py::gil_scoped_release released;
  return self.require_tokenizer().decode(ids, skip_special);
}

void add_model(py::module_& module) {
  py::class_<Generation>(module, "Generation")
      .def("next", &next_piece)
      .def("stopped", &Generation::stopped, py::call_guard<py::gil_scoped_release>());
  module.def("built_in_model", [] { return py::bytes(cli::built_in_model().string()); });
  py::class_<LoadedModel, std::shared_ptr<LoadedModel>>(module, "Model")
      .def(py::init([](const std::string& folder, const std::string& device) {
        const Work work;
        return std::make_shared<LoadedModel>(folder, device);
      }))
      .def("device", [](const LoadedModel& self) { return self.model.device().name(); })
      .def("logits", &logits)
      .def("encode", &encode)
      .def("decode", &decode)
      .def("generate", &generate);
}

}  // namespace
}  // namespace dofla::python

PYBIND11_MODULE(_dofla, module) {
  module.attr("version") = std::string(dofla::version());
  dofla::python::add_end_of_work(module);
  dofla::python::add_exceptions(module);
  dofla::python::add_model(module);
  dofla::python::add_commands(module);
}
