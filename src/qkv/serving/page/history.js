// Files of chats in the form of `qkv chat`: one JSON object a line, {"messages": […], "tools": […]}. The last one goes on.
function chatLine(messages, columns) {
  return JSON.stringify({ messages, ...columns }) + "\n";
}
function lastChat(text) {
  const rows = chatRows(text.replace(/^\ufeff/, "")), row = rows[rows.length - 1];
  const { messages, ...columns } = Array.isArray(row) ? { messages: row } : row || {};
  const valid = Array.isArray(messages) && messages.every((each) => each && typeof each.role === "string");
  if (!valid) throw new Error("The file holds no chat; allowed: JSON with a list of messages, one chat a line.");
  return { messages, columns };
}
function chatRows(text) {
  try {
    const tree = JSON.parse(text);
    return Array.isArray(tree) && !(tree[0] && tree[0].role) ? tree : [tree];
  } catch { // one chat a line
    try { return text.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line)); } catch { return []; }
  }
}

if (typeof module !== "undefined") module.exports = { chatLine, lastChat };
