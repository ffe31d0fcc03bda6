"""What each DRA driver publishes: which attribute or capacity a policy word reads, and which words it cannot express.

Sources, read in July and August 2026: kubernetes-sigs/dra-driver-nvidia-gpu (cmd/gpu-kubelet-plugin/deviceinfo.go),
ROCm/k8s-gpu-dra-driver (docs/driver-attributes.md), intel/intel-resource-drivers-for-kubernetes
(cmd/kubelet-gpu-plugin/node_state.go), kubernetes-sigs/dra-example-driver (internal/profiles/gpu/gpu.go).
A new driver is one more entry of `DRIVERS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

STANDARD_DOMAIN = "resource.kubernetes.io"  # attributes that mean the same for every driver (KEP-4381, KEP-6072)


@dataclass(frozen=True, slots=True)
class Driver:
    """The words of one driver. Attribute and capacity names stand under the driver's own domain; None: not published.

    `classes` are the DeviceClasses that come with the driver; the value says whether their devices are whole ones.
    `whole` is CEL that holds for whole devices only and never fails, or None where the driver publishes nothing that
    tells a part from the whole. `standard` are the `resource.kubernetes.io/` attributes it publishes. `plugin` are the
    extended resources as which the vendor's device plugin gives the same devices, `*` at the end for any ending, the
    one for whole devices first. `product_label` is the node label that the vendor's tools write the product in, with
    one of `part_marks` in its value where the plugin gives parts of devices, or shares them, under that first name.
    """

    name: str
    classes: Mapping[str, bool]
    product: str
    memory: str | None
    driver_version: str | None
    architecture: str | None
    whole: str | None
    standard: frozenset[str]
    plugin: tuple[str, ...]
    product_label: str | None = None
    part_marks: tuple[str, ...] = ()

    def cannot_express(self, word: str) -> bool:
        """Whether `word` (the name of a constraint in a policy file) has no meaning for this driver's devices."""
        published = {
            "memory": self.memory,
            "driverVersion": self.driver_version,
            "architectures": self.architecture,
            "wholeDevice": self.whole,
        }
        return word in published and published[word] is None

    def publishes(self, attribute: str) -> bool:
        """Whether devices may carry `attribute` (`domain/id`): a standard one of the table, or any of its own."""
        domain, _, _ = attribute.partition("/")
        return attribute in self.standard if domain == STANDARD_DOMAIN else domain == self.name


def _standard(*ids: str) -> frozenset[str]:
    return frozenset(f"{STANDARD_DOMAIN}/{name}" for name in ids)


DRIVERS: Mapping[str, Driver] = {
    driver.name: driver
    for driver in (
        Driver(
            name="gpu.nvidia.com",
            classes={"gpu.nvidia.com": True, "mig.nvidia.com": False, "vfio.gpu.nvidia.com": False},
            product="productName",
            memory="memory",
            driver_version="driverVersion",
            architecture="architecture",
            # MIG slices say 'mig', passthrough devices 'vfio'.
            whole=(
                "has(device.attributes['gpu.nvidia.com'].type) && device.attributes['gpu.nvidia.com'].type == 'gpu'"
                " && !device.allowMultipleAllocations"
            ),
            standard=_standard("pciBusID", "pcieRoot", "numaNode"),
            plugin=("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*"),
            # GPU feature discovery: MIG strategy `single`, and time-slicing or MPS without renameByDefault.
            product_label="nvidia.com/gpu.product",
            part_marks=("-MIG-", "-SHARED"),
        ),
        Driver(
            name="gpu.amd.com",
            classes={"gpu.amd.com": True},
            product="productName",
            memory="memory",  # 0 stands for "could not be read": such a device meets no floor
            driver_version="driverVersion",
            architecture=None,
            # Partitions say 'amdgpu-partition'. In auto-partition mode a whole GPU (spx) says 'amdgpu'.
            whole=(
                "has(device.attributes['gpu.amd.com'].type) && device.attributes['gpu.amd.com'].type == 'amdgpu'"
                " && !device.allowMultipleAllocations"
            ),
            standard=_standard("pciBusID", "pcieRoot"),
            plugin=("amd.com/gpu",),
        ),
        Driver(
            name="gpu.intel.com",
            classes={"gpu.intel.com": True, "gpu-vfio.intel.com": False},
            product="model",
            memory="memory",
            driver_version=None,  # `driver` is the kernel module's name (i915, xe), not a version
            architecture=None,  # `family` is a product line ("Data Center Max")
            whole=None,  # a virtual function and a GPU without SR-IOV both say sriov=false
            standard=_standard("pciBusID", "pcieRoot"),
            plugin=("gpu.intel.com/i915", "gpu.intel.com/xe"),
        ),
        Driver(
            name="gpu.example.com",
            classes={"gpu.example.com": True},
            product="model",
            memory="memory",
            driver_version="driverVersion",
            architecture=None,
            whole="!has(device.attributes['gpu.example.com'].partition) && !device.allowMultipleAllocations",
            standard=frozenset(),
            plugin=("example.com/gpu",),
        ),
    )
}


def driver_of_class(device_class: str) -> str | None:
    """The driver whose table names the DeviceClass, or None."""
    return next((driver.name for driver in DRIVERS.values() if device_class in driver.classes), None)
