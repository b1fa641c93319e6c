#include "dofla/report/result_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dofla {
namespace {

using testing::HasSubstr;
using testing::Not;

ResultTable sample() {
  return {.title = "Loss",
          .label_names = {"strategy"},
          .columns = {{"softmax", "wiki-mini"}, {"l2", "wiki-mini"}, {"softmax", "paper"}},
          .rows = {{{"Fix"},
                    {{.text = "4.2", .aside = "± 0.1"},
                     {.text = "5.1", .aside = {}, .bold = true},
                     {.text = "5.4", .aside = {}}}},
                   {{"DoF"}, {{.text = "4.3", .aside = {}}}}},
          .notes = {"Nats a token."}};
}

TEST(ResultTable, Markdown) {
  EXPECT_EQ(to_markdown(sample()),
            "## Loss\n\n"
            "| strategy | wiki-mini: softmax | wiki-mini: l2 | paper: softmax |\n"
            "| --- | ---: | ---: | ---: |\n"
            "| Fix | 4.2 ± 0.1 | **5.1** | 5.4 |\n"
            "| DoF | 4.3 | | |\n"
            "\nNats a token.\n");
}

TEST(ResultTable, HtmlGroupsColumnsAndFillsRows) {
  const std::string html = to_html(sample());
  EXPECT_THAT(html, HasSubstr("class=\"begins\" colspan=\"2\">wiki-mini</th>"));
  EXPECT_THAT(html, HasSubstr("class=\"begins\" colspan=\"1\">paper</th>"));
  EXPECT_THAT(html,
              HasSubstr("<td class=\"begins\">4.2<small> ± 0.1</small></td><td><b>5.1</b></td>"
                        "<td class=\"begins\">5.4</td></tr>"));
  EXPECT_THAT(html, HasSubstr("<td class=\"begins\">4.3</td><td></td><td class=\"begins\"></td>"));
  EXPECT_THAT(html, HasSubstr("<p class=\"note\">Nats a token.</p>"));
}

TEST(ResultTable, WithoutGroupsThereIsOneLineOfHeadings) {
  ResultTable table = sample();
  for (TableColumn& column : table.columns) column.group.clear();
  EXPECT_THAT(to_html(table), Not(HasSubstr("colgroup")));
  EXPECT_THAT(to_markdown(table), HasSubstr("| strategy | softmax | l2 | softmax |"));
}

TEST(ResultTable, HostileTextStaysText) {
  ResultTable table = sample();
  table.rows[0].labels[0] = "<script>|`*\n";
  TablesPage page = {
      .title = "<b>", .about = "a|b", .facts = {{"n<", "v|"}}, .tables = {table}, .version = "1"};
  const std::string html = render_tables_page(page), markdown = to_markdown(page);
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;"));
  EXPECT_THAT(html, HasSubstr("<bdi>&lt;b&gt;</bdi>"));
  EXPECT_THAT(html, HasSubstr("n&lt;"));
  EXPECT_THAT(markdown, HasSubstr("| \\<script\\>\\|\\`\\*  |"));
  EXPECT_THAT(markdown, HasSubstr("# \\<b\\>\n"));
  EXPECT_THAT(markdown, HasSubstr("| n\\< | v\\| |"));
}

}  // namespace
}  // namespace dofla
