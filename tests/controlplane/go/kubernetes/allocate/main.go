// Asks kube-scheduler's own allocator, a line at a time: one question as JSON on standard input, one answer on standard
// output. tests/allocation/oracle.py says what a question is. What the scheduler does around the allocator (which
// features it sets, which devices it counts as taken, how it merges taint rules) is done here the same way.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
)

// The scheduler gives up on a node after this long (its default filterTimeout).
const filterTimeout = 10 * time.Second

type question struct {
	Gates      map[string]bool
	Nodes      []*v1.Node
	Slices     []*resourceapi.ResourceSlice
	Classes    classes
	TaintRules []resourceapi.DeviceTaintRule
	Claims     []*resourceapi.ResourceClaim
	Allocate   []string // namespace/name of claims, in the order of the Pod
	Try        []string // names of nodes; all when absent
}

type verdict struct {
	Node         string                         `json:"node"`
	Results      []resourceapi.AllocationResult `json:"results"` // null when there is none
	Error        string                         `json:"error,omitempty"`
	OnNode       bool                           `json:"onNode,omitempty"` // the error speaks of this node only
	Steps        int64                          `json:"steps"`            // calls of the search
	Microseconds int64                          `json:"microseconds"`
}

type answer struct {
	Features structured.Features `json:"features"`
	Refused  string              `json:"refused,omitempty"` // why the scheduler would not get as far as to ask
	Nodes    []verdict           `json:"nodes"`
}

type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, apierrors.NewNotFound(resourceapi.Resource("deviceclass"), name) // as the generated lister says it
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<28)
	out := bufio.NewWriter(os.Stdout)
	answers := json.NewEncoder(out)
	caches := map[cel.Features]*cel.Cache{}
	for lines.Scan() {
		var q question
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			log.Fatal(err)
		}
		if err := answers.Encode(q.answer(caches)); err != nil {
			log.Fatal(err)
		}
		if err := out.Flush(); err != nil {
			log.Fatal(err)
		}
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}

func (q question) answer(caches map[cel.Features]*cel.Cache) answer {
	gates := gatesOf(q.Gates)
	a := answer{Features: dynamicresources.AllocatorFeatures(feature.NewSchedulerFeaturesFromGates(gates)), Nodes: []verdict{}}
	celFeatures := cel.Features{
		EnableConsumableCapacity: a.Features.ConsumableCapacity,
		EnableListTypeAttributes: a.Features.ListTypeAttributes,
	}
	if caches[celFeatures] == nil {
		caches[celFeatures] = cel.NewCache(1000, celFeatures)
	}
	if gates.Enabled(features.DRADeviceTaintRules) {
		merge(q.TaintRules, q.Slices)
	}
	state := taken(q.Claims, a.Features.ConsumableCapacity)
	var claims []*resourceapi.ResourceClaim
	for _, name := range q.Allocate {
		for _, claim := range q.Claims {
			if claim.Namespace+"/"+claim.Name == name {
				claims = append(claims, claim)
			}
		}
	}
	if len(claims) != len(q.Allocate) {
		log.Fatalf("want one claim each: %v", q.Allocate)
	}
	a.Refused = refused(q.Classes, claims)
	tried := sets.New(q.Try...)
	for _, node := range q.Nodes {
		if len(tried) == 0 || tried.Has(node.Name) {
			a.Nodes = append(a.Nodes, try(a.Features, state, q.Classes, q.Slices, caches[celFeatures], node, claims))
		}
	}
	return a
}

// refused looks for classes that do not exist, as the scheduler's PreFilter does, with its text.
func refused(classes classes, claims []*resourceapi.ResourceClaim) string {
	missing := func(class, request string) string {
		if _, err := classes.Get(class); err != nil {
			return fmt.Sprintf("request %s: device class %s does not exist", request, class)
		}
		return ""
	}
	for _, claim := range claims {
		for _, request := range claim.Spec.Devices.Requests {
			if request.Exactly != nil {
				if text := missing(request.Exactly.DeviceClassName, request.Name); text != "" {
					return text
				}
			}
			for _, alternative := range request.FirstAvailable {
				if text := missing(alternative.DeviceClassName, request.Name+"/"+alternative.Name); text != "" {
					return text
				}
			}
		}
	}
	return ""
}

// gatesOf is the scheduler's gates at their defaults, with those given put over them.
func gatesOf(over map[string]bool) featuregate.FeatureGate {
	gates := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	if err := gates.SetFromMap(over); err != nil {
		log.Fatal(err)
	}
	return gates
}

// try asks about one node. The allocator is new each time: it keeps a pool's counters from the first node that needed
// them, so that a pool of different content on two nodes would otherwise be judged by the order of the nodes.
func try(
	wanted structured.Features, state structured.AllocatedState, classes classes, slices []*resourceapi.ResourceSlice,
	cache *cel.Cache, node *v1.Node, claims []*resourceapi.ResourceClaim,
) verdict {
	ctx, cancel := context.WithTimeout(context.Background(), filterTimeout)
	defer cancel()
	started := time.Now()
	allocator, err := structured.NewAllocator(ctx, wanted, state, classes, slices, cache)
	if err != nil {
		log.Fatal(err)
	}
	results, err := allocator.Allocate(ctx, node, claims)
	v := verdict{Node: node.Name, Results: results, Microseconds: time.Since(started).Microseconds(), Steps: steps(allocator)}
	if err != nil {
		v.Error = err.Error()
		v.OnNode = errors.Is(err, structured.ErrFailedAllocationOnNode)
	}
	return v
}

// steps reads the allocator's own count; its type is in an internal package.
func steps(allocator structured.Allocator) int64 {
	method := reflect.ValueOf(allocator).MethodByName("GetStats")
	if !method.IsValid() {
		return 0
	}
	return method.Call(nil)[0].FieldByName("NumAllocateOneInvocations").Int()
}

// merge adds the taints of rules to the devices that they select, like the scheduler's tracker of slices.
func merge(rules []resourceapi.DeviceTaintRule, slices []*resourceapi.ResourceSlice) {
	meant := func(wanted *string, name string) bool { return wanted == nil || *wanted == name }
	for _, rule := range rules {
		selector := rule.Spec.DeviceSelector
		if selector == nil {
			continue
		}
		for _, slice := range slices {
			if !meant(selector.Driver, slice.Spec.Driver) || !meant(selector.Pool, slice.Spec.Pool.Name) {
				continue
			}
			for i := range slice.Spec.Devices {
				if device := &slice.Spec.Devices[i]; meant(selector.Device, device.Name) {
					device.Taints = append(device.Taints, rule.Spec.Taint)
				}
			}
		}
	}
}

// taken gathers what is allocated already, like the scheduler's cache of claims: admin access takes nothing, a share
// takes capacity, everything else takes the device.
func taken(claims []*resourceapi.ResourceClaim, sharing bool) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			switch {
			case result.AdminAccess != nil && *result.AdminAccess:
			case sharing && result.ShareID != nil:
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
				if result.ConsumedCapacity != nil {
					state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
				}
			default:
				state.AllocatedDevices.Insert(id)
			}
		}
	}
	return state
}
