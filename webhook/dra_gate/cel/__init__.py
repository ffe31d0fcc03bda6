"""CEL as Kubernetes' device selectors use it: parsed and type-checked once, evaluated by closures."""
