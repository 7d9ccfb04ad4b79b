// Asks a server for what a picture of a page says, and draws where it says it.

/**
 * Read a picture with a served examples/ocr/page.toml.
 * @param {string} address where the server is, as http://localhost:8000
 * @param {Blob|Uint8Array} file the bytes of the picture
 * @returns {Promise<{text: string, lines: {text: string, confidence: number, quad: number[][]}[]}>}
 */
export async function readPage(address, file) {
  const answer = await fetch(`${address}/run/page`, { method: "POST", body: file });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error);
  return told.result;
}

/** Draw a picture, and around each line of text its four corners, which are in pixels of the picture. */
export function draw(canvas, picture, lines) {
  canvas.width = picture.width;
  canvas.height = picture.height;
  const pen = canvas.getContext("2d");
  pen.drawImage(picture, 0, 0);
  pen.strokeStyle = "#d33";
  pen.lineWidth = 2;
  for (const { quad } of lines) {
    pen.beginPath();
    for (const [x, y] of quad) pen.lineTo(x, y);
    pen.closePath();
    pen.stroke();
  }
}

/** Let the elements of page.html work. */
export function start(document) {
  const [input, address, canvas, text] = ["file", "address", "canvas", "text"].map((id) =>
    document.getElementById(id),
  );
  input.addEventListener("change", async () => {
    text.textContent = "...";
    try {
      const [file] = input.files;
      const page = await readPage(address.value, file);
      draw(canvas, await createImageBitmap(file), page.lines);
      text.textContent = page.text;
    } catch (error) {
      text.textContent = `${error}`;
    }
  });
}
