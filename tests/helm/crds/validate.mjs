// Reads a JSON list of custom resources on standard input; prints one line for each that its own project's schema refuses.

const packages = {
  "gateway.networking.k8s.io": "@kubernetes-models/gateway-api",
  "keda.sh": "@kubernetes-models/keda",
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
};

let text = "";
for await (const part of process.stdin) text += part;
for (const resource of JSON.parse(text)) {
  const [group] = resource.apiVersion.split("/");
  const {[resource.kind]: Model} = await import(`${packages[group]}/${resource.apiVersion}/${resource.kind}`);
  try {
    new Model(resource).validate();
  } catch (error) {
    console.log(`${resource.kind} ${resource.metadata.name}: ${error.message}`);
  }
}
