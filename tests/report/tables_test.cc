// The numbers behind the charts, cell by cell.
#include "dofla/report/tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dofla {
namespace {

using testing::ElementsAre;

using Rows = std::vector<std::vector<std::string>>;

// The cells of every row of one or more tables, headings too, without the tags inside them.
Rows rows_of(const std::string& html) {
  Rows rows;
  std::string* cell = nullptr;
  for (size_t at = 0; at < html.size(); ++at) {
    if (html[at] != '<') {
      if (cell != nullptr) *cell += html[at];
      continue;
    }
    const size_t end = html.find('>', at);
    const std::string tag = html.substr(at + 1, end - at - 1);
    if (tag == "tr") rows.emplace_back();
    if (tag.starts_with("th ") || tag == "td") cell = &rows.back().emplace_back();
    if (tag == "/th" || tag == "/td") cell = nullptr;
    if (tag == "b" && cell != nullptr) *cell += "*";
    at = end;
  }
  return rows;
}

LayerDof layer_of(const std::vector<double>& dof) {
  LayerDof layer;
  for (const double value : dof) layer.heads.push_back({value, 0, {}});
  return layer;
}

TEST(ReportTables, DegreesOfFreedomGoOnInAnotherTableWithTheirOwnHeads) {
  DofSection dof;
  std::vector<double> values;
  for (int head = 1; head <= 14; ++head) values.push_back(head + 0.25);
  dof.layers = {layer_of(values), layer_of({30.5, 20})};
  dof.layers[0].heads[12].spread = 0.5;
  const Rows rows = rows_of(dof_table_html(dof));
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_THAT(rows[0],
              ElementsAre("layer", "head 1", "head 2", "head 3", "head 4", "head 5", "head 6",
                          "head 7", "head 8", "head 9", "head 10", "head 11", "head 12"));
  EXPECT_THAT(rows[1], ElementsAre("1", "1.2", "2.2", "3.2", "4.2", "5.2", "6.2", "7.2", "8.2",
                                   "9.2", "10.2", "11.2", "12.2"));
  EXPECT_THAT(rows[2], ElementsAre("2", "*30.5", "20.0"));
  EXPECT_THAT(rows[3], ElementsAre("layer", "head 13", "head 14"));
  EXPECT_THAT(rows[4], ElementsAre("1", "13.2 ±0.5", "*14.2"));
  EXPECT_THAT(rows[5], ElementsAre("2"));
}

TEST(ReportTables, ThePlanGoesOnInAnotherTableWithItsOwnLayers) {
  PlanSection plan;
  for (int64_t layer = 1; layer <= 13; ++layer)
    plan.layers.push_back({{10 * layer, 10 * layer}, 0.5 * static_cast<double>(layer)});
  const Rows rows = rows_of(plan_table_html(plan));
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[0][12], "layer 12");
  EXPECT_EQ(rows[1][0], "M");
  EXPECT_EQ(rows[1][12], "120");
  EXPECT_EQ(rows[2][12], "±6");
  EXPECT_THAT(rows[3], ElementsAre("", "layer 13"));
  EXPECT_THAT(rows[4], ElementsAre("M", "130"));
  EXPECT_THAT(rows[5], ElementsAre("spread", "±6.5"));
}

TEST(ReportTables, ExactKeysHaveARowWhereThereAreAny) {
  PlanSection plan;
  plan.layers = {{{4}, 0, 36}, {{4}, 0, 0}};
  EXPECT_THAT(rows_of(plan_table_html(plan)).at(2), ElementsAre("exact keys", "36", "0"));
}

TEST(ReportTables, CostsHaveRowsWhereTheyAreKnown) {
  PlanSection plan;
  plan.layers = {{{4}, 0, 36, TokenCost{64'048, 68'608}}, {{}, 0, 0}};
  const Rows rows = rows_of(plan_table_html(plan));
  EXPECT_THAT(rows.at(3), ElementsAre("memory", "64.0 kB", "grows"));
  EXPECT_THAT(rows.at(4), ElementsAre("operations a token", "68\u202f608", "grows"));
}

TEST(ReportTables, HeadsThatDifferHaveTheirOwnTable) {
  PlanSection plan;
  plan.layers = {{{4, 8, 6}, 0}, {{5, 5, 5}, 0}};
  for (int64_t head = 4; head <= 13; ++head) plan.layers[0].heads.push_back(head);
  const Rows rows = rows_of(plan_table_html(plan));
  ASSERT_EQ(rows.size(), 2u + 3u + 3u);
  EXPECT_THAT(rows[1], ElementsAre("mean M", "7.923", "5"));  // (4 + 8 + 6 + 4 + … + 13) / 13
  EXPECT_EQ(rows[2][1], "head 1");
  EXPECT_THAT(rows[3],
              ElementsAre("1", "4", "8", "6", "4", "5", "6", "7", "8", "9", "10", "11", "12"));
  EXPECT_THAT(rows[4], ElementsAre("2", "5", "5", "5"));
  EXPECT_THAT(rows[5], ElementsAre("layer", "head 13"));
  EXPECT_THAT(rows[6], ElementsAre("1", "13"));
}

TEST(ReportTables, SpectraAreThoseOfTheLargestHeadAtPowersOfTwo) {
  DofSection dof;
  dof.layers = {layer_of({3, 5})};
  dof.layers[0].heads[0].spectrum = {{1, 0.9}, {2, 0.8}};
  dof.layers[0].heads[1].spectrum = {{1, 0.5}, {2, 0.25}, {3, 0.2}, {4, 0.125}, {5, 0.1}};
  const Rows rows = rows_of(spectra_table_html(dof));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[0], ElementsAre("layer", "head", "rank 1", "rank 2", "rank 4"));
  EXPECT_THAT(rows[1], ElementsAre("1", "2", "0.5", "0.25", "0.125"));
}

TEST(ReportTables, LambdasHaveTheirOwnColumn) {
  DofSection dof;
  dof.layers = {layer_of({3}), layer_of({4})};
  dof.layers[0].dof_by_lambda = {{0x1p-4, 8.5}, {0x1p-2, 4}};
  dof.layers[1].dof_by_lambda = {{0x1p-2, 7}};
  const Rows rows = rows_of(by_lambda_table_html(dof));
  EXPECT_THAT(rows, ElementsAre(ElementsAre("layer", "λ = 2⁻⁴", "λ = 2⁻²"),
                                ElementsAre("1", "8.5", "4.0"), ElementsAre("2", "", "7.0")));
}

TEST(ReportTables, ErrorsHaveTheBoundAndBothDensities) {
  DofSection dof;
  dof.layers = {layer_of({3})};
  dof.layers[0].error_bound = {{32, 1.5}};
  dof.layers[0].leverage_error = {{8, 0.75}, {32, 0.25}};
  dof.layers[0].gaussian_error = {{8, 0.9}, {32, 20}};
  EXPECT_THAT(rows_of(feature_errors_table_html(dof)),
              ElementsAre(ElementsAre("layer", "", "M = 8", "M = 32"),
                          ElementsAre("1", "theorem", "", "1.5"),
                          ElementsAre("1", "leverage", "0.75", "0.25"),
                          ElementsAre("1", "Gaussian", "0.9", "20")));
}

TEST(ReportTables, LossesAtFiveMoments) {
  TrainingSection training;
  training.layer_loss.emplace_back();
  for (int step = 1; step <= 9; ++step)
    training.layer_loss[0].push_back({double(step), 1.0 / step});
  const Rows rows = rows_of(loss_table_html(training));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[1], ElementsAre("1", "1", "0.3333", "0.2", "0.1429", "0.1111"));
}

}  // namespace
}  // namespace dofla
