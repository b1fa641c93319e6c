// /v1/states: what sequences have left behind, under names. A completion keeps one (keep_state) and
// goes on from one (from_state); here they are listed, forked, removed, fetched and brought back.
#include "dofla/serve/answer_json.h"
#include "dofla/serve/service.h"

namespace dofla {
namespace {

// The value of a field of a query, or nothing.
std::string query_field(const std::string& query, const std::string& name) {
  for (size_t begin = 0; begin <= query.size();) {
    const size_t end = std::min(query.find('&', begin), query.size());
    const std::string one = query.substr(begin, end - begin);
    if (one.starts_with(name + "=")) return percent_decoded(one.substr(name.size() + 1));
    begin = end + 1;
  }
  return {};
}

OrderedJson describe(const StateStore::Listed& state, const std::string& model) {
  return {{"id", state.name},
          {"object", "state"},
          {"model", model},
          {"tokens", state.tokens},
          {"bytes", state.bytes}};
}

// What a store throws, as clients read it.
template <class Do>
void in_store(const Do& act) {
  try {
    act();
  } catch (const NoSuchState& error) {
    throw ApiError(404, error.what(), "name", "state_not_found");
  } catch (const std::invalid_argument& error) {
    throw ApiError(400, error.what(), "name", "invalid_value");
  } catch (const Error& error) {
    throw ApiError(400, error.what(), {}, "invalid_state");
  }
}

}  // namespace

void Service::send_state(const Call& call, const ServedModel& owner, const std::string& name) {
  for (const StateStore::Listed& state : owner.states().list())
    if (state.name == name) return call.reply.send({.body = to_text(describe(state, owner.id()))});
  throw ApiError(404, "state " + name + " is gone", "name", "state_not_found");
}

void Service::list_states(const Call& call) {
  const auto owner = model(query_field(call.request.query, "model"));
  OrderedJson list = {{"object", "list"}, {"data", OrderedJson::array()}};
  for (const StateStore::Listed& state : owner->states().list())
    list["data"].push_back(describe(state, owner->id()));
  call.reply.send({.body = to_text(list)});
}

void Service::fork_state(const Call& call) {
  const Json body = parse_body(call.request.body);
  const auto owner = model(text_field(body, "model").value_or(""));
  const auto from = text_field(body, "from"), name = text_field(body, "name");
  if (!from)
    refuse("from", "expected the state to fork; keep_state of a completion keeps a new one");
  if (!name) refuse("name", "expected a name for the fork");
  in_store([&] { owner->states().fork(*from, *name); });
  send_state(call, *owner, *name);
}

void Service::fetch_state(const Call& call) {
  const auto owner = model(query_field(call.request.query, "model"));
  in_store([&] {
    call.reply.send({.body = owner->states().write(call.rest), .type = "application/octet-stream"});
  });
}

void Service::bring_state(const Call& call) {
  const auto owner = model(query_field(call.request.query, "model"));
  in_store([&] { owner->states().read(call.rest, call.request.body); });
  send_state(call, *owner, call.rest);
}

void Service::remove_state(const Call& call) {
  const auto owner = model(query_field(call.request.query, "model"));
  if (!owner->states().remove(call.rest))
    throw ApiError(404, "there is no state " + printable(call.rest), "name", "state_not_found");
  call.reply.send({.body = to_text({{"id", call.rest}, {"object", "state"}, {"deleted", true}})});
}

}  // namespace dofla
