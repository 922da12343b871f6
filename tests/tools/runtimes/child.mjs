// Runs ONNX files in onnxruntime-node or onnxruntime-web; the same request and answers as child.py.
// `read` gives the bytes of a file as an ArrayBuffer, `say` takes one answer.

export async function runAll(ort, request, read, say) {
  const x = new Float32Array(await read(request.input));
  for (const { model, expected, sessions } of request.models) {
    const answer = { model, error: "", off: [] };
    try {
      const wanted = new Float32Array(await read(expected));
      const bytes = new Uint8Array(await read(model));
      for (let count = 0; count < sessions; count++) {
        const options = { logSeverityLevel: 4, ...request.options };
        const session = await ort.InferenceSession.create(bytes, options);
        for (let again = 0; again < request.runs; again++) {
          const feeds = { input: new ort.Tensor("float32", x, request.shape) };
          const { output } = await session.run(feeds);
          let off = 0;
          for (let i = 0; i < wanted.length; i++) {
            const here = Math.abs(output.data[i] - wanted[i]);
            off = here <= off ? off : Number.isNaN(here) ? 1e30 : here;
          }
          answer.off.push(off);
        }
        await session.release?.();
      }
    } catch (error) {
      answer.error = String(error?.message ?? error).slice(0, 600) || "an error without words";
    }
    await say(answer);
  }
}

if (globalThis.process?.versions?.node) {
  const { readFile } = await import("node:fs/promises");
  const { createRequire } = await import("node:module");
  const ort = createRequire(process.cwd() + "/")("onnxruntime-node");
  const read = async (path) => {
    const buffer = await readFile(path);
    return buffer.buffer.slice(buffer.byteOffset, buffer.byteOffset + buffer.byteLength);
  };
  const request = JSON.parse((await readFile("/dev/stdin")).toString());
  await runAll(ort, request, read, (answer) => console.log(JSON.stringify(answer)));
}
