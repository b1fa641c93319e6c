// The charts of the page that compares students with their teacher.
#pragma once

#include <string>
#include <vector>

#include "dofla/fidelity/fidelity.h"

namespace dofla {

// What students are called in charts: the last part of their paths, or all of it where those are
// not different.
std::string last_part(const std::string& folder);  // "gpt2" of "models/gpt2/"
std::vector<std::string> short_names(const FidelityReport& report);

// Which colour is which student's.
std::string students_legend(const FidelityReport& report);

// The mean divergence of every student on every text, over the ranges of the grades.
std::string render_kl_overview(const FidelityReport& report);

// Divergence up to which a share of all tokens stays.
std::string render_kl_percentiles(const FidelityReport& report);
std::string render_reliability(const FidelityReport& report);
std::string render_kl_by_position(const FidelityReport& report);
std::string render_attention_errors(const FidelityReport& report);
// Of one student.
std::string render_head_errors(const StudentFidelity& student, size_t index);
std::string render_memory(const FidelityReport& report);

}  // namespace dofla
