// Contents of messages: a text, or a list of parts, with pictures as data URIs before the text.
const READ = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];
function contentOf(text, pictures) {
  return pictures.length ? [...pictures.map((url) => ({ type: "image_url", image_url: { url } })), { type: "text", text }] : text;
}
function textOf(content) {
  return Array.isArray(content) ? content.map((part) => part.text).filter((text) => typeof text === "string").join("") : content || "";
}
function picturesOf(content) {
  const addresses = (Array.isArray(content) ? content : []).map((part) => part.image_url?.url ?? part.image_url);
  return addresses.filter((url) => typeof url === "string" && url.startsWith("data:image/"));
}
async function pictureUri(file) {
  const image = await createImageBitmap(file); // refuses what is no picture
  if (file.size > 2 ** 20 || !READ.includes(file.type)) return smaller(image, 1024);
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
}
function smaller(image, side) {
  const canvas = document.createElement("canvas"), scale = Math.min(1, side / Math.max(image.width, image.height));
  canvas.width = Math.max(1, Math.round(scale * image.width));
  canvas.height = Math.max(1, Math.round(scale * image.height));
  const drawing = canvas.getContext("2d");
  drawing.fillStyle = "white";
  drawing.fillRect(0, 0, canvas.width, canvas.height);
  drawing.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.92);
}

if (typeof module !== "undefined") module.exports = { contentOf, textOf, picturesOf };
