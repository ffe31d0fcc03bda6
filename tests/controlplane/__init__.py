"""The control-plane kit: a real etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback.

    with ControlPlane() as plane:                                # control_plane: about four seconds
        Fleet.load("four-and-four").install(plane.api())         # fleet: fake nodes, classes, slices; fleets/*.yaml
        with Gate(plane, Path("policies"), replicas=2):          # gate: serve, controller, webhooks by URL
            plane.api().create(pod, "lilac-train")               # api: raw JSON, as any user

Tests use the fixtures of `tests/conftest.py`; people use `python -m controlplane up` (also `build` and `rate`). `build`
makes the programs from source once and keeps them in the user's cache. There is no kubelet and no kube-proxy: what only
a kubelet would write is written by `kubelet` and says so in the object; `forwarder` stands where a Service would.
"""
