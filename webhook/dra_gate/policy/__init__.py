"""Policy files: catalogue, device policies, tenants; loading, compiling to claim templates, linting."""
