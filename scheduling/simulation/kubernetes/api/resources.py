"""The resources that the API serves. Pure."""

from __future__ import annotations

from dataclasses import dataclass

READ = ("get", "list", "watch")
WRITE = ("create", "delete", "deletecollection", "patch", "update")


@dataclass(frozen=True, kw_only=True)
class Subresource:
    name: str
    kind: str
    verbs: tuple[str, ...]
    group: str = ""  # group and version of its kind, if they differ from those of the resource
    version: str = ""


STATUS = Subresource(name="status", kind="", verbs=("get", "patch", "update"))


@dataclass(frozen=True, kw_only=True)
class ResourceType:
    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    verbs: tuple[str, ...] = tuple(sorted((*READ, *WRITE)))
    subresources: tuple[Subresource, ...] = ()
    generations: bool = False  # whether metadata.generation counts changes of the spec

    @property
    def id(self) -> str:
        """The plural with its group, as in `jobs.batch`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def has_status(self) -> bool:
        return any(sub.name == "status" for sub in self.subresources)

    def subresource(self, name: str) -> Subresource | None:
        return next((sub for sub in self.subresources if sub.name == name), None)


POD_SUBRESOURCES = (
    STATUS,
    Subresource(name="log", kind="Pod", verbs=("get",)),
    Subresource(name="exec", kind="PodExecOptions", verbs=("create", "get")),
    Subresource(name="binding", kind="Binding", verbs=("create",)),
    Subresource(name="eviction", kind="Eviction", verbs=("create",), group="policy", version="v1"),
)
CREATE_ONLY = ("create",)
RBAC = "rbac.authorization.k8s.io"

RESOURCES: tuple[ResourceType, ...] = (
    ResourceType(plural="configmaps", kind="ConfigMap", short_names=("cm",)),
    ResourceType(plural="events", kind="Event", short_names=("ev",)),
    ResourceType(
        plural="namespaces",
        kind="Namespace",
        namespaced=False,
        short_names=("ns",),
        verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
        subresources=(STATUS,),
    ),
    ResourceType(plural="nodes", kind="Node", namespaced=False, short_names=("no",), subresources=(STATUS,)),
    ResourceType(plural="persistentvolumeclaims", kind="PersistentVolumeClaim", short_names=("pvc",)),
    ResourceType(plural="pods", kind="Pod", short_names=("po",), subresources=POD_SUBRESOURCES),
    ResourceType(plural="secrets", kind="Secret"),
    ResourceType(
        plural="serviceaccounts",
        kind="ServiceAccount",
        short_names=("sa",),
        subresources=(
            Subresource(
                name="token", kind="TokenRequest", verbs=CREATE_ONLY, group="authentication.k8s.io", version="v1"
            ),
        ),
    ),
    ResourceType(plural="services", kind="Service", short_names=("svc",), subresources=(STATUS,)),
    ResourceType(
        plural="jobs",
        kind="Job",
        group="batch",
        subresources=(STATUS,),
        generations=True,
    ),
    ResourceType(
        plural="poddisruptionbudgets",
        kind="PodDisruptionBudget",
        group="policy",
        short_names=("pdb",),
        subresources=(STATUS,),
        generations=True,
    ),
    ResourceType(plural="leases", kind="Lease", group="coordination.k8s.io"),
    ResourceType(
        plural="priorityclasses",
        kind="PriorityClass",
        group="scheduling.k8s.io",
        namespaced=False,
        short_names=("pc",),
    ),
    ResourceType(plural="clusterroles", kind="ClusterRole", group=RBAC, namespaced=False),
    ResourceType(plural="clusterrolebindings", kind="ClusterRoleBinding", group=RBAC, namespaced=False),
    ResourceType(plural="roles", kind="Role", group=RBAC),
    ResourceType(plural="rolebindings", kind="RoleBinding", group=RBAC),
)

# Served only if the options of the cluster say so, as on a cluster where the CRD of JobSet is installed
JOB_SET = ResourceType(
    plural="jobsets",
    kind="JobSet",
    group="jobset.x-k8s.io",
    version="v1alpha2",
    subresources=(STATUS,),
    generations=True,
)
NODES, PODS, JOBS, EVENTS, NAMESPACES = "nodes", "pods", "jobs.batch", "events", "namespaces"
LEASES, BUDGETS, SERVICE_ACCOUNTS = "leases.coordination.k8s.io", "poddisruptionbudgets.policy", "serviceaccounts"
PRIORITY_CLASSES, SERVICES, JOB_SETS = "priorityclasses.scheduling.k8s.io", "services", "jobsets.jobset.x-k8s.io"
BY_ID = {resource.id: resource for resource in (*RESOURCES, JOB_SET)}
