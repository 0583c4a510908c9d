const $ = (id) => document.getElementById(id);
const FAR = "The server does not answer. It may have stopped; start it again, then retry.";
let mode = "chat", wished = "chat", turns = [], pictures = [], running = null, models = [], last = null, columns = {};
const rates = [];

function headers() {
  const found = { "content-type": "application/json" };
  if ($("key").value) found.authorization = "Bearer " + $("key").value;
  return found;
}
async function request(path, options) {
  let answer;
  try { answer = await fetch(path, { headers: headers(), ...options }); } catch (error) {
    throw error.name === "AbortError" ? error : new Error(FAR);
  }
  if (answer.status === 401) {
    const before = !$("keys").hidden;
    $("keys").hidden = false;
    $("key").focus();
    throw new Error(before && $("key").value ? "The server refuses this key. Type the key it was started with." : "This server needs a key. Type it into the field Key.");
  }
  if (!answer.ok) throw new Error(await reason(answer));
  return answer;
}
async function reason(answer) {
  try { return sentence((await answer.json()).error.message); } catch { return "The server answered with the status " + answer.status + "."; }
}
function sentence(text) {
  const said = String(text).trim();
  return said.charAt(0).toUpperCase() + said.slice(1) + (/[.!?…]$/.test(said) ? "" : ".");
}

async function loadModels() {
  try {
    models = (await (await request("/v1/models")).json()).data;
    const before = $("model").value;
    $("model").replaceChildren(...models.map((each) => new Option(each.id)));
    if (models.some((each) => each.id === before)) $("model").value = before;
    else $("model").value = (models.find(chats) || models.find(writes) || models[0] || { id: "" }).id;
    choose();
  } catch (error) { $("note").textContent = error.message; }
}
const chosen = () => models.find((each) => each.id === $("model").value);
const writes = (model) => model.capabilities.includes("completions");
const chats = (model) => writes(model) && model.capabilities.includes("chat");
const sees = (model) => chats(model) && model.capabilities.includes("pictures");
function choose() {
  const model = chosen();
  if (!model) return;
  $("chat").disabled = !chats(model);
  $("chat").title = chats(model) ? "" : "This model has no chat template: it completes texts.";
  if (writes(model)) {
    const fitting = chats(model) ? wished : "complete";
    if (fitting !== mode) show(fitting);
  }
  describe(model);
  ready();
  if (!$("log").querySelector(".turn")) greet();
}
function describe(model) {
  const known = model.defaults || {}, chatting = mode === "chat";
  $("temperature").placeholder = known.temperature ?? "";
  $("top_p").placeholder = known.top_p ?? "off";
  $("max_tokens").placeholder = chatting ? "to its end" : known.max_tokens ?? "";
  $("seed").placeholder = known.seed ?? "random";
  $("ends").placeholder = (known.stop || []).map((text) => text.replaceAll("\n", "\\n")).join(", ") || "nothing";
  $("context").textContent = model.max_model_len ? model.max_model_len.toLocaleString("en") + " tokens" : "–";
  $("told").hidden = !chatting;
  $("picture").hidden = !chatting || !sees(model);
  if ($("picture").hidden) keep([]);
}
function ready() {
  const model = chosen(), able = Boolean(model) && writes(model);
  $("send").disabled = !able;
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
  $("note").textContent = model && !able ? "This model does not write text. It offers: " + model.capabilities.join(", ") + "." : "";
  for (const button of document.querySelectorAll(".retry")) button.disabled = running !== null;
}
function greet() {
  const box = document.createElement("div"), name = document.createElement("strong"), model = chosen();
  box.className = "empty";
  name.textContent = model ? model.id : "qkv";
  box.append(name, mode === "chat" ? "Ask something to begin." : "Write the beginning of a text, and the model goes on.");
  $("log").replaceChildren(box);
}
function show(next) {
  mode = next;
  for (const name of ["chat", "complete"]) $(name).setAttribute("aria-pressed", String(name === mode));
  $("prompt").placeholder = mode === "chat" ? "Write a message" : "Write the beginning of a text";
  $("prompt").setAttribute("aria-label", mode === "chat" ? "Message" : "Beginning of the text");
  $("hint").textContent = (mode === "chat" ? "Enter sends, Shift+Enter begins a new line" : "Ctrl+Enter completes") + ", Escape stops.";
  $("send").textContent = mode === "chat" ? "Send" : "Complete";
  clear();
  if (chosen()) describe(chosen());
}
function clear() {
  if (running) running.abort();
  turns = [];
  columns = {};
  keep([]);
  greet();
  ready();
  $("prompt").focus({ preventScroll: true });
}

function copyButton(name, text) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-label", name);
  button.onclick = async () => {
    const done = await copied(text());
    button.textContent = done ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  return button;
}
async function copied(text) {
  try { await navigator.clipboard.writeText(text); return true; } catch { // pages of other machines have no clipboard
    const field = document.createElement("textarea"), focused = document.activeElement;
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (focused) focused.focus();
    return done;
  }
}
function turn(role, name) {
  const block = document.createElement("div"), who = document.createElement("div"), body = document.createElement("div"), under = document.createElement("div");
  block.className = "turn " + role;
  who.className = "who";
  who.textContent = name;
  body.className = "text";
  under.className = "under";
  block.append(who, body, under);
  const empty = $("log").querySelector(".empty");
  if (empty) empty.remove();
  $("log").append(block);
  return { block, body, under, text: "", spans: null, drawn: 0 };
}
function asked(content) {
  const place = turn("user", "You"), text = textOf(content), row = document.createElement("div");
  place.body.classList.add("plain");
  place.body.textContent = text;
  row.className = "pictures";
  row.append(...picturesOf(content).map(drawn));
  place.body.before(row);
  place.under.append(copyButton("Copy message", () => text));
  place.block.scrollIntoView({ block: "end" });
}

function drawn(url) {
  const image = document.createElement("img");
  image.src = url;
  image.alt = "Picture";
  return image;
}
function keep(urls) {
  pictures = urls;
  $("pictures").replaceChildren(...urls.map((url, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-label", "Remove picture " + (i + 1));
    button.title = "Remove";
    button.append(drawn(url));
    button.onclick = () => { keep(pictures.filter((_, k) => k !== i)); $("prompt").focus(); };
    return button;
  }));
}
async function attach(files) {
  $("note").textContent = "";
  for (const file of files) {
    try { keep([...pictures, await pictureUri(file)]); } catch { $("note").textContent = file.name + " is no picture that this browser reads."; }
  }
  $("image").value = "";
  $("prompt").focus();
}

function settings() {
  const body = { model: $("model").value, stream: true, stream_options: { include_usage: true } };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) if ($(name).value !== "") body[name] = Number($(name).value);
  if ($("ends").value) body.stop = [$("ends").value.replaceAll("\\n", "\n")];
  return body;
}
function wrong() {
  const names = { temperature: "Temperature", top_p: "Top p", max_tokens: "New tokens", seed: "Seed" };
  const bad = Object.keys(names).find((name) => !$(name).checkValidity());
  return bad && names[bad] + ": " + $(bad).validationMessage;
}
async function send() {
  const prompt = $("prompt").value, problem = wrong();
  if (running || $("send").disabled || (mode === "chat" && !prompt.trim())) return;
  if (problem) { $("note").textContent = problem; return; }
  $("prompt").value = "";
  grow();
  if (mode === "chat") {
    if (turns.length && turns[turns.length - 1].role === "user") turns.pop(); // it was not answered
    const content = contentOf(prompt, pictures);
    turns.push({ role: "user", content });
    keep([]);
    asked(content);
    await answer();
  } else await completed(prompt);
}
async function answer() {
  const body = settings(), messages = whole(), own = turns;
  Object.assign(body, { messages }, $("scored").checked ? { logprobs: true, top_logprobs: 5 } : {});
  const place = turn("assistant", body.model);
  const found = await ask("/v1/chat/completions", body, place);
  if (own !== turns) return;
  if (place.text) turns.push({ role: "assistant", content: place.text, ...(place.thought ? { reasoning_content: place.thought.textContent } : {}) });
  finish(place, found, () => {
    if (own === turns) {
      if (place.text) turns.splice(turns.length - 1, 1);
      place.block.remove();
      answer();
    }
  });
}
function whole() {
  const system = $("system").value.trim();
  return [...(system ? [{ role: "system", content: system }] : []), ...turns];
}
function saveChat() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([chatLine(whole(), columns)]));
  link.download = "chat.jsonl";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
async function openChat() {
  const file = $("file").files[0];
  try {
    const chat = lastChat(await file.text()), system = chat.messages.length && chat.messages[0].role === "system";
    clear();
    $("system").value = system ? textOf(chat.messages[0].content) : "";
    turns = chat.messages.slice(system ? 1 : 0);
    columns = chat.columns;
    turns.forEach(read);
  } catch (error) { $("note").textContent = error.message; }
  $("file").value = "";
}
function read(message) {
  const calls = (message.tool_calls || []).map((call) => "→ " + call.function.name + " " + JSON.stringify(call.function.arguments));
  const text = [textOf(message.content), ...calls].filter(Boolean).join("\n\n");
  if (message.role === "user") return asked(message.content);
  const place = turn("assistant", message.role === "tool" ? "Tool" : $("model").value);
  place.text = text;
  if (message.reasoning_content) thought(place, message.reasoning_content);
  place.under.append(copyButton("Copy answer", () => text));
  draw(place, true);
}
async function completed(prompt) {
  const body = settings();
  Object.assign(body, { prompt }, $("scored").checked ? { logprobs: 5 } : {});
  $("log").replaceChildren();
  const place = turn("completion", body.model), given = document.createElement("span");
  given.className = "given";
  given.textContent = prompt;
  place.body.classList.add("plain");
  place.body.append(given);
  place.spans = document.createElement("span");
  place.body.append(place.spans);
  const found = await ask("/v1/completions", body, place);
  finish(place, found, () => completed(prompt), prompt);
}

async function ask(path, body, place) {
  const mine = running = new AbortController(), begun = performance.now();
  const found = { first: null, usage: null, why: null, error: null, begun };
  place.body.classList.add("busy");
  $("log").setAttribute("aria-busy", "true");
  ready();
  try {
    const response = await request(path, { method: "POST", body: JSON.stringify(body), signal: mine.signal });
    for await (const event of events(response)) {
      if (event.error) throw new Error(sentence(event.error.message));
      found.usage = event.usage || found.usage;
      for (const choice of event.choices) {
        if (append(place, choice) && found.first === null) found.first = performance.now();
        found.why = choice.finish_reason || found.why;
      }
    }
  } catch (error) { found.error = error.name === "AbortError" ? null : error.message; if (!found.error) found.why = "stopped"; }
  place.body.classList.remove("busy");
  draw(place, true);
  $("log").setAttribute("aria-busy", "false");
  if (running === mine) running = null;
  ready();
  return found;
}
function finish(place, found, again, prompt) {
  if (found.error !== null) {
    const told = document.createElement("div");
    told.className = "error";
    told.setAttribute("role", "alert");
    told.textContent = found.error;
    place.body.after(told);
  }
  if (found.why === "length" || found.why === "stopped") {
    const cut = document.createElement("div");
    cut.className = "cut";
    cut.textContent = found.why === "length" ? "The answer is cut: the limit of new tokens, or of the context, was reached." : "The answer was stopped.";
    place.body.after(cut);
  }
  if (place.text) place.under.append(copyButton("Copy answer", () => (prompt || "") + place.text));
  for (const button of document.querySelectorAll(".retry")) button.remove();
  place.under.append(action("Retry", again));
  if (prompt !== undefined && found.why === "length") place.under.append(action("Continue", () => completed(prompt + place.text)));
  place.under.append(document.createTextNode(figures(found)));
  stay(true);
}
function action(name, run) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "retry";
  button.textContent = name;
  button.onclick = () => { if (!running) { run(); $("prompt").focus({ preventScroll: true }); } };
  return button;
}
function figures(found) {
  if (!found.usage || found.first === null) return "";
  const seconds = (performance.now() - found.first) / 1000, count = found.usage.completion_tokens;
  const rate = count > 1 && seconds > 0 ? ", " + ((count - 1) / seconds).toFixed(1) + " per second" : "";
  return count + " tokens" + rate + ", " + found.usage.prompt_tokens + " read, the first after " + ((found.first - found.begun) / 1000).toFixed(2) + " s";
}

function append(place, choice) {
  const talk = choice.delta !== undefined, text = talk ? choice.delta.content || "" : choice.text, scores = choice.logprobs;
  place.text += text;
  if (talk && choice.delta.reasoning_content) thought(place, choice.delta.reasoning_content);
  if (scores) {
    if (!place.spans) { place.spans = document.createElement("span"); place.body.classList.add("plain"); place.body.replaceChildren(place.spans); }
    if (talk) for (const each of scores.content) place.spans.append(scored(each.token, each.logprob, each.top_logprobs.map((one) => [one.token, one.logprob])));
    else scores.tokens.forEach((token, i) => place.spans.append(scored(token, scores.token_logprobs[i], Object.entries(scores.top_logprobs[i]))));
  } else if (place.spans) place.spans.append(text);
  draw(place, false);
  return text || choice.delta?.reasoning_content;
}
function thought(place, text) {
  if (!place.thought) {
    const fold = document.createElement("details"), title = document.createElement("summary");
    place.thought = document.createElement("div");
    title.textContent = "Reasoning";
    fold.className = "thought";
    fold.append(title, place.thought);
    place.body.before(fold);
  }
  place.thought.append(text);
}
function draw(place, now) {
  if (!place.spans && (now || performance.now() - place.drawn > 80)) { // not at each token: the whole text is parsed
    const near = atEnd();
    place.body.replaceChildren(...markdown(place.text).map(element));
    place.drawn = performance.now();
    stay(near);
  } else stay(atEnd());
}
const atEnd = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 120;
function stay(near) { if (near) $("log").scrollTop = $("log").scrollHeight; }
function scored(text, score, alternatives) {
  const span = document.createElement("span"), chance = Math.exp(score);
  span.textContent = text;
  span.style.backgroundColor = "hsl(" + Math.round(120 * chance) + " 70% 50% / .3)";
  span.title = (100 * chance).toFixed(1) + " %\n" + alternatives.map(([token, value]) => JSON.stringify(token) + " " + (100 * Math.exp(value)).toFixed(1) + " %").join("\n");
  return span;
}
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => { throw error.name === "AbortError" ? error : new Error(FAR); });
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

function sum(text, name) {
  let total = 0;
  for (const line of text.split("\n")) if (line.startsWith(name + "{")) total += Number(line.slice(line.lastIndexOf(" ")));
  return total;
}
async function watch() {
  if (!document.hidden && models.length && $("settings").offsetParent) try {
    const text = await (await request("/metrics")).text(), now = performance.now(), tokens = sum(text, "qkv_generated_tokens_total");
    $("running").textContent = sum(text, "qkv_requests_running");
    $("waiting").textContent = sum(text, "qkv_requests_waiting");
    $("bytes").textContent = (sum(text, "qkv_state_bytes") / 2 ** 20).toFixed(1) + " MiB";
    if (last) {
      const rate = Math.max(0, (tokens - last.tokens) / ((now - last.now) / 1000));
      $("all").textContent = rate.toFixed(1);
      rates.push(rate);
      if (rates.length > 60) rates.shift();
      const most = Math.max(1, ...rates);
      $("line").setAttribute("points", rates.map((value, i) => i + "," + (19 - 18 * value / most).toFixed(2)).join(" "));
    }
    last = { now, tokens };
  } catch { $("running").textContent = "–"; }
  setTimeout(watch, 1000);
}
function grow() {
  $("prompt").style.height = "auto";
  $("prompt").style.height = $("prompt").scrollHeight + "px";
}

for (const name of ["chat", "complete"]) $(name).onclick = () => {
  wished = name;
  if (mode !== name) show(name);
};
$("composer").onsubmit = (event) => { event.preventDefault(); send(); };
$("stop").onclick = () => { if (running) running.abort(); $("prompt").focus(); };
$("clear").onclick = clear;
$("save").onclick = saveChat;
$("open").onclick = () => $("file").click();
$("file").onchange = openChat;
$("picture").onclick = () => $("image").click();
$("image").onchange = () => attach([...$("image").files]);
$("toggle").onclick = () => $("toggle").setAttribute("aria-expanded", String($("settings").classList.toggle("open")));
$("model").onchange = () => { if (mode === "complete") clear(); choose(); };
$("key").onchange = loadModels;
$("prompt").oninput = grow;
$("prompt").onpaste = (event) => {
  if (event.clipboardData.files.length && !$("picture").hidden) { event.preventDefault(); attach([...event.clipboardData.files]); }
};
$("prompt").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && (mode === "chat" || event.ctrlKey)) { event.preventDefault(); send(); }
};
document.onkeydown = (event) => { if (event.key === "Escape" && running) running.abort(); };
greet();
loadModels().then(watch);
