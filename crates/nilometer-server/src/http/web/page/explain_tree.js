// An explain as a tree: the result at the top, below each step its inputs, at the bottom
// the access path.

import { h } from "./dom.js";
import { exact } from "./scale.js";
import { compact, decode, isNested, numberOf, pretty, textOf } from "./values.js";

/** Descriptions of steps. */
const WORDS = {
  COLLSCAN: "goes through the collection",
  CLUSTERED_IXSCAN: "reads a range of _id",
  IXSCAN: "reads an index",
  EXPRESS_IXSCAN: "looks one document up in an index",
  EXPRESS_CLUSTERED_IXSCAN: "looks one document up by _id",
  IDHACK: "looks one document up by _id",
  FETCH: "reads the documents an index names",
  DISTINCT_SCAN: "reads each value of an index once",
  COUNT: "counts",
  COUNT_SCAN: "counts entries of an index",
  RECORD_STORE_FAST_COUNT: "asks the collection for its count",
  SORT: "sorts",
  SORT_MERGE: "merges sorted inputs",
  OR: "unites its branches",
  AND_SORTED: "intersects its branches",
  AND_HASH: "intersects its branches",
  LIMIT: "ends after so many",
  SKIP: "leaves out the first",
  PROJECTION_SIMPLE: "picks fields",
  PROJECTION_DEFAULT: "picks fields",
  PROJECTION_COVERED: "picks fields, from the index alone",
  SUBPLAN: "plans each branch of $or on its own",
  EOF: "finds nothing, and knows it at once",
  TS_MODIFY: "changes measurements in buckets",
  $_internalUnpackBucket: "takes measurements out of buckets",
  $match: "keeps matching documents",
  $group: "groups",
  $sort: "sorts",
  $limit: "ends after so many",
  $skip: "leaves out the first",
  $project: "shapes documents",
  $addFields: "adds fields",
  $set: "adds fields",
  $unwind: "makes one document of each element",
  $lookup: "adds matching documents of another collection",
  $setWindowFields: "computes over neighbours",
  $_internalSetWindowFields: "computes over neighbours",
  $facet: "does several things with the same documents",
  $sample: "draws some at random",
  $geoNear: "finds documents near a point",
};

/** Values shown first, and their names. */
const FIGURES = [
  ["nReturned", "gives"],
  ["docsExamined", "reads"],
  ["keysExamined", "index keys"],
  ["totalDocsExamined", "reads"],
  ["totalKeysExamined", "index keys"],
  ["executionTimeMillisEstimate", "ms"],
  ["executionTimeMillis", "ms"],
];

/** Fields with the inputs of a step. */
const INPUTS = ["inputStage", "inputStages", "outerStage", "innerStage", "thenStage", "elseStage", "queryPlan"];

/** A step: {name, fields, inputs}. */
function planStep(plan) {
  if (plan.queryPlan && !plan.stage) return planStep(plan.queryPlan);
  const fields = {};
  const inputs = [];
  for (const [name, value] of Object.entries(plan)) {
    if (name === "stage") continue;
    if (INPUTS.includes(name)) inputs.push(...[value].flat().map(planStep));
    else fields[name] = value;
  }
  return { name: plan.stage ?? "step", fields, inputs };
}

/** Returns the plan of a section with `queryPlanner`, with statistics if it was run. */
function querySteps(section) {
  const plan = section.executionStats?.executionStages ?? section.queryPlanner?.winningPlan;
  return plan ? [planStep(plan)] : [];
}

/** Returns the steps of an explain, the last operator first. */
export function steps(explained) {
  if (!Array.isArray(explained.stages)) return querySteps(explained);
  let below = [];
  for (const stage of explained.stages) {
    const name = Object.keys(stage).find((key) => key.startsWith("$"));
    if (name === undefined) continue;
    if (name === "$cursor") {
      below = querySteps(stage.$cursor);
      continue;
    }
    const { [name]: spec, ...figures } = stage;
    const fields = isNested(spec) && !Array.isArray(spec) ? { ...spec, ...figures } : { [name]: spec, ...figures };
    below = [{ name, fields, inputs: below }];
  }
  return below;
}

function section(explained) {
  return explained.stages?.find((stage) => stage.$cursor)?.$cursor ?? explained;
}

function stepElement(step) {
  const figures = FIGURES.filter(([name]) => numberOf(step.fields[name]) !== null).map(([name, title]) => {
    const number = exact(numberOf(step.fields[name]));
    return h("span", { class: "figure" }, title === "ms" ? `${number} ms` : `${title} ${number}`);
  });
  const hidden = new Set(FIGURES.map(([name]) => name));
  const rest = Object.entries(step.fields).filter(([name, value]) => !hidden.has(name) && !(Array.isArray(value) && value.length === 0));
  const facts = rest.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, isNested(value) ? compact(value) : textOf(value))));
  const slow = step.name === "COLLSCAN" ? " scan" : "";
  const box = h(
    "div",
    { class: `step${slow}` },
    h("div", { class: "stephead" }, h("b", null, step.name), h("span", { class: "quiet" }, WORDS[step.name] ?? "")),
    figures.length > 0 ? h("div", { class: "figures" }, figures) : null,
    facts.length > 0 ? h("dl", { class: "facts small" }, facts) : null,
  );
  const below = step.inputs.length > 0 ? h("ul", { class: "steps" }, step.inputs.map(stepElement)) : null;
  return h("li", null, box, below);
}

/** The drawing of a reply to `explain`, canonical extended JSON. */
export function explainTree(reply) {
  const explained = decode(reply);
  const found = steps(explained);
  const { queryPlanner, executionStats } = section(explained);
  const chips = [];
  const chip = (text) => chips.push(h("span", { class: "badge" }, text));
  if (queryPlanner?.namespace) chip(queryPlanner.namespace);
  if (executionStats) {
    chip(`${exact(numberOf(executionStats.executionTimeMillis))} ms`);
    const what = queryPlanner?.namespace?.includes(".system.buckets.") ? "buckets" : "documents";
    chip(`${exact(numberOf(executionStats.totalDocsExamined))} ${what} read`);
    chip(`${exact(numberOf(executionStats.totalKeysExamined))} index keys`);
  }
  const rules = queryPlanner?.rulesApplied ?? [];
  const json = h("details", null, h("summary", null, "All of it, as JSON"), h("pre", { class: "json", tabindex: "0" }, pretty(reply)));
  return h(
    "div",
    { class: "result explain" },
    h("div", { class: "chips" }, chips),
    rules.length > 0 ? h("p", { class: "quiet" }, `The planner applied: ${rules.join(", ")}.`) : null,
    found.length > 0
      ? h("ul", { class: "steps root", "aria-label": "Steps; each reads from those below it" }, found.map(stepElement))
      : h("p", null, "This explain has no steps to draw."),
    json,
  );
}
