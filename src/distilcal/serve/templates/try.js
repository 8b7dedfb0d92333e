"use strict";
// The page to try the model. All text is set as text, never as HTML.

const byId = (id) => document.getElementById(id);
const form = byId("form"), first = byId("first"), second = byId("second"), button = form.querySelector("button");
const SHOWN_BARS = 50;
let kind = "texts";

async function readImage() {
  const [file] = byId("file").files;
  if (!file) throw new Error("choose an image first");
  const address = await new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.readAsDataURL(file);
  });
  return address.slice(address.indexOf(",") + 1);
}

const readExample = {
  texts: () => (second.value === "" ? first.value : [first.value, second.value]),
  choices: () => [first.value, second.value.split("\n").filter((line) => line.trim() !== "")],
  images: readImage,
  vectors: () => first.value.split(/[\s,;]+/).filter((word) => word !== "").map(Number),
};

const percent = (share) => (100 * share).toFixed(1) + "%";

function describe(health) {
  kind = health.input_kind;
  byId("about").textContent = `Reads ${kind}; ${health.classes.length} classes. ${health.calibrated ? "" : "Not known to be calibrated. "}`
    + (health.teacher === null ? "" : `Defers to ${health.teacher.name}.`);
  if (kind === "choices") {
    byId("first-label").textContent = "Prompt";
    byId("second-summary").textContent = byId("second-label").textContent = "Endings, one a line";
    byId("second-field").open = true;
  }
  if (kind === "images") {
    byId("first-label").textContent = "Image, PNG or JPEG";
    byId("first-label").htmlFor = "file";
    first.hidden = byId("second-field").hidden = true;
    byId("file").hidden = false;
  }
  if (kind === "vectors") {
    byId("first-label").textContent = "Numbers, separated by commas or spaces";
    byId("second-field").hidden = true;
  }
}

function promise(response) {
  if (response.threshold === null) return "No confidence can promise what is required, so everything is handed over.";
  const from = `The model's own answers from ${percent(response.threshold)} on are`;
  return response.accuracy === null
    ? `${from} kept.`
    : `${from} at least ${percent(response.accuracy)} accurate on data like dev.`;
}

function verdict(answer, response) {
  const box = byId("verdict"), label = document.createElement("strong");
  const sure = answer.confidence === null ? "." : `, ${percent(answer.confidence)} sure.`;
  label.textContent = answer.label;
  box.className = answer.hand_over ? "over" : "accept";
  if (answer.hand_over === null) {
    box.className = "";
    box.replaceChildren(label, sure);
    byId("promise").textContent = "The model has no dev predictions, so no accuracy can be promised.";
    return;
  }
  if (answer.label === null) box.replaceChildren(`Hand over to a human: ${answer.reason}.`);
  else if (answer.answered_by === "teacher") box.replaceChildren("Answered by the teacher: ", label, sure);
  else box.replaceChildren(answer.hand_over ? "Hand over to a human: " : "Accept: ", label, sure);
  byId("promise").textContent = promise(response);
}

function bar(name, share, threshold) {
  const row = document.createElement("li");
  const [label, track, fill, value] = ["span", "div", "div", "span"].map((tag) => document.createElement(tag));
  label.className = "name";
  label.textContent = name;
  track.className = "track";
  fill.className = "fill";
  fill.style.width = 100 * share + "%";
  track.append(fill);
  value.className = "share";
  value.textContent = percent(share);
  if (threshold !== null) {
    const limit = document.createElement("div");
    limit.className = "limit";
    limit.style.left = `calc(${100 * threshold}% - 1px)`;
    limit.title = "from here on answers are accepted";
    track.append(limit);
  }
  row.append(label, track, value);
  return row;
}

function show(response) {
  const answer = response.predictions[0];
  const shares = Object.entries(answer.probabilities ?? {}).sort((a, b) => b[1] - a[1]).slice(0, SHOWN_BARS);
  const limit = answer.answered_by === "teacher" ? null : response.threshold;
  verdict(answer, response);
  byId("bars").replaceChildren(...shares.map(([name, share], n) => bar(name, share, n === 0 ? limit : null)));
  byId("result").hidden = false;
}

function showError(message) {
  byId("error").textContent = message;
  byId("error").hidden = false;
  byId("result").hidden = true;
}

async function fetchJson(path, options) {
  const answer = await fetch(path, options);
  const content = await answer.json().catch(() => ({ error: `the service answered with status ${answer.status}` }));
  if (!answer.ok) throw new Error(content.error);
  return content;
}

async function classify() {
  button.disabled = true;
  byId("error").hidden = true;
  try {
    const body = JSON.stringify({ [kind]: [await readExample[kind]()] });
    show(await fetchJson("predict", { method: "POST", headers: { "Content-Type": "application/json" }, body }));
  } catch (error) {
    showError(error.message);
  } finally {
    button.disabled = false;
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  classify();
});
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
fetchJson("health").then(describe).catch((error) => showError(error.message));
