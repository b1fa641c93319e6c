// What the report page shows, as plain numbers: the page knows nothing of models or checkpoints.
// A section that is absent is left out of the page. Numbers may be NaN or infinite: they are named
// in the tables and left out of the charts. Layers and heads are shown counted from 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dofla/fidelity/divergence.h"
#include "dofla/model/operations.h"

namespace dofla {

struct CurvePoint {
  double x = 0;
  double y = 0;
};
using Curve = std::vector<CurvePoint>;  // in the order of x

struct HeadDof {
  double dof = 0;
  double spread = 0;  // over the draws; 0 when there was one draw
  Curve spectrum;     // (rank from 1, eigenvalue of the scaled Gram matrix), downsampled
};

struct LayerDof {
  std::vector<HeadDof> heads;
  Curve dof_by_lambda;  // (lambda, degrees of freedom of the layer: its largest head's)
  // (M, error of as many features) of its largest head: what the theorem promises with probability
  // 0.9, and as measured with features from either density. Empty if they were not measured.
  Curve error_bound = {}, leverage_error = {}, gaussian_error = {};
};

struct DofSection {
  double lambda = 0;
  std::string gram;  // "trace", "max", "samples" or "none"
  int64_t samples = 0;
  int64_t draws = 0;
  std::vector<LayerDof> layers;
};

// The loss that linear attention adds, layer by layer.
struct SensitivitySection {
  std::vector<Curve> layers;  // (M, loss added by this layer alone), as measured
  int64_t windows = 0;
  std::vector<double> predicted;  // the same for the M of the plan; empty without one
  std::vector<double> realised;   // by the layers of the student on held-out text; empty if unknown
  std::optional<double> realised_whole;  // by all of them together
};

struct LayerPlan {
  std::vector<int64_t> heads;  // M of every head; the paper's strategies give all heads the same
  double spread = 0;           // of M, as it follows from the spread of the degrees of freedom
  int64_t keys = 0;            // that a key head keeps exact, on average
  // What its attention holds of a sequence and does for a token; nothing of softmax attention.
  std::optional<TokenCost> cost = {};
};

struct PlanSection {
  std::string strategy;  // "fix", "dof", "dof-clip", "dof-head" or "sensitivity"
  double cost = 0;       // C: the mean M asked for
  std::vector<LayerPlan> layers;
};

// Baselines of the student, measured on the same text.
struct ControlRow {
  std::string name;  // "a window of 64 keys alone"
  double loss = 0;
  int64_t state_bytes = 0;
};

struct TrainingSection {
  std::string loss;               // the objective's name, such as "softmax"
  std::vector<Curve> layer_loss;  // (step, loss) per layer
  std::vector<double> floor;      // what each of these curves cannot fall below; empty if unknown
  std::string floor_name;         // "the entropy of the teacher's attention"
  // Of each layer's attention output, relative: 1 is as far off as an output of zeros.
  std::vector<double> layer_error;
  std::optional<double> teacher_loss;
  std::optional<double> student_loss;
  std::optional<double> kl;
  std::optional<double> same_top;        // in [0, 1]
  std::optional<Divergence> divergence;  // all of it
  std::optional<int64_t> state_bytes;    // the linear model's state
  std::optional<int64_t> cache_bytes;    // the teacher's key/value cache at `context` tokens
  std::optional<int64_t> context;
  std::optional<double> tokens_per_second;
  std::vector<ControlRow> controls;         // the student's own row is made of the fields above
  std::vector<std::string> controls_notes;  // a sentence each
};

struct ReportData {
  std::string title;
  std::string model;  // one line: name, family, size
  std::optional<DofSection> dof;
  std::optional<SensitivitySection> sensitivity;
  std::optional<PlanSection> plan;
  std::optional<TrainingSection> training;
  std::vector<std::pair<std::string, std::string>> facts;  // further rows: name, value
  std::string command;                                     // the command line that made the page
  std::string version;
};

}  // namespace dofla
