// The figures that the paper prints for GPT-2, each with the table that it stands in.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "dofla/distill/loss.h"
#include "dofla/features/feature_set.h"
#include "dofla/plan/dimension_plan.h"

namespace dofla::published {

// Table 1, "The dimension of features selected by our method": strategy dof, C = 64, λ = 2⁻⁴.
const std::vector<int64_t>& dimensions();

// Table 2, "DoF with λ = 2⁻⁸ of each head": [layers, heads].
const std::vector<std::vector<double>>& degrees_of_freedom();

// Table 3, "The results of distillation for GPT-2": accuracy after fine-tuning. Tasks by their
// names in data/tasks. Nothing for what the paper does not have.
std::optional<double> teacher_accuracy(std::string_view task);
std::optional<double> baseline_accuracy(FeatureMap map, std::string_view task);
std::optional<double> accuracy(PlanStrategy strategy, LossKind loss, std::string_view task);

// Table 4, "Comparison of the inference time per sequence with 1,000 tokens": seconds.
std::optional<double> inference_seconds(PlanStrategy strategy);

// Table 5, "Comparison of the consuming time per each sample during training": milliseconds.
std::optional<double> training_milliseconds(LossKind loss);

// Table 7, "The performance of next-token prediction": nats a token.
double teacher_loss();
std::optional<double> baseline_loss(FeatureMap map);
std::optional<double> next_token_loss(PlanStrategy strategy, LossKind loss);

}  // namespace dofla::published
