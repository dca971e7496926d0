// Pictures that wait to be sent with the next message: dropped, pasted or chosen.

import { byId, make } from "./dom.js";

const READ = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff"];
const MOST_BYTES = 400_000; // of a file that is sent as it is; base64 adds a third
const MOST_SIDE = 1568; // pixels of the longer side of others: towers scale larger ones down anyway
const MOST_PICTURES = 16;

export const thumbnail = ({ url, name, size }, more = {}) =>
  make("img", { src: url, alt: name, title: size ? `${name}, ${size}` : name, ...more });

// The pictures of a message; of those that the browser's store had no room for, their names.
export function figure({ pictures: shown = [] }) {
  if (!shown.length) return [];
  const each = (one) => (one.url ? thumbnail(one) : make("span", { className: "quiet" }, `${one.name} (not kept by this browser)`));
  return [make("div", { className: "pictures" }, ...shown.map(each))];
}

// The base64 of pictures, as Ollama's API takes them.
export const encoded = (shown) => shown.filter(({ url }) => url).map(({ url }) => url.slice(url.indexOf(",") + 1));

function readUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

// Returns {url, name, size}; large files and formats that the server does not read are drawn anew.
async function readPicture(file) {
  const name = file.name || "pasted picture";
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    // A format that browsers lack may still be one that the server reads.
    if (READ.includes(file.type) && file.size <= MOST_BYTES) return { url: await readUrl(file), name };
    throw new Error(`${name}: this browser finds no picture in it (${file.type || "unknown type"}, ${file.size} bytes).`);
  }
  const { width, height } = bitmap;
  if (READ.includes(file.type) && file.size <= MOST_BYTES) {
    bitmap.close();
    return { url: await readUrl(file), name, size: `${width} × ${height}` };
  }
  const scale = Math.min(1, MOST_SIDE / Math.max(width, height));
  const canvas = make("canvas", {
    width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)),
  });
  const pen = canvas.getContext("2d");
  pen.fillStyle = "#fff"; // where it is transparent, as on the server
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.imageSmoothingQuality = "high";
  pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const size = `${width} × ${height}, sent as ${canvas.width} × ${canvas.height}`;
  return { url: canvas.toDataURL("image/jpeg", 0.9), name, size };
}

export class Waiting {
  // `refusal` returns why the model takes no pictures, or nothing; `fail` shows an error.
  constructor(refusal, fail) {
    this.refusal = refusal;
    this.fail = fail;
    this.pictures = [];
    this.reading = null; // a promise while files are read
    byId("picture").onclick = () => { if (this.isAllowed()) byId("files").click(); };
    byId("files").onchange = ({ target }) => {
      this.add([...target.files]);
      target.value = ""; // so that the same file may be chosen again
    };
    byId("prompt").addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length) return;
      event.preventDefault();
      this.add(files);
    });
    this.bindDrop();
  }

  bindDrop() {
    const isFiles = (event) => event.dataTransfer?.types.includes("Files");
    const mark = (on) => document.body.classList.toggle("dropping", on);
    document.addEventListener("dragover", (event) => {
      if (!isFiles(event)) return;
      event.preventDefault(); // else the browser opens the file in place of the page
      mark(true);
    });
    document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) mark(false); });
    document.addEventListener("drop", (event) => {
      if (!isFiles(event)) return;
      event.preventDefault();
      mark(false);
      this.add([...event.dataTransfer.files]);
    });
  }

  isAllowed() {
    const why = this.refusal();
    this.fail(why ? new Error(why) : null);
    return !why;
  }

  add(files) {
    if (!files.length || !this.isAllowed()) return;
    const reading = Promise.resolve(this.reading).then(() => this.read(files)).then(() => {
      if (this.reading === reading) this.reading = null;
    });
    this.reading = reading;
  }

  async read(files) {
    const errors = [];
    for (const file of files) {
      if (this.pictures.length === MOST_PICTURES) {
        errors.push(`A message takes ${MOST_PICTURES} pictures; ${file.name} was left out.`);
        break;
      }
      try {
        this.pictures.push(await readPicture(file));
      } catch (error) {
        errors.push(error.message);
      }
      this.draw();
    }
    if (errors.length) this.fail(new Error(errors.join(" ")));
    byId("prompt").focus();
  }

  set(pictures) {
    this.pictures = [...pictures];
    this.draw();
  }

  take() {
    const taken = this.pictures;
    this.set([]);
    return taken;
  }

  draw() {
    const place = byId("waiting"), log = byId("log");
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    place.hidden = !this.pictures.length;
    place.replaceChildren(...this.pictures.map((picture) => make("li", {},
      thumbnail(picture),
      make("button", {
        type: "button", "aria-label": `Remove ${picture.name}`, title: "Remove",
        onclick: () => { this.set(this.pictures.filter((each) => each !== picture)); byId("prompt").focus(); },
      }, "×"))));
    if (follows) log.scrollTop = log.scrollHeight; // the list takes room from the log
  }
}
