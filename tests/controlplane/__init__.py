"""The control-plane kit: a real etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback.

`python -m controlplane up` starts one with fake GPU nodes and the gate and keeps it running; tests use the
fixtures of `tests/conftest.py`. There is no kubelet and no kube-proxy: what only a kubelet would write is written
by `controlplane.kubelet` and says so in the object; the place of kube-proxy is taken by `controlplane.forwarder`.
"""
