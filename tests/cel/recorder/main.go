// Answers, line by line, what Kubernetes makes of a selector or a quantity. See ../record.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
)

type question struct {
	Quantity   *string
	Expression string
	Driver     string
	Devices    []resourceapi.Device
}

type outcome struct {
	Result bool   `json:"result"`
	Error  string `json:"error,omitempty"`
}

type answer struct {
	Refused string    `json:"refused,omitempty"` // quantity, or expression that somebody writes
	Value   string    `json:"value,omitempty"`   // of the quantity
	Int64   bool      `json:"int64,omitempty"`   // whether AsInt64 succeeds
	Cost    uint64    `json:"cost"`              // estimate for the expression that somebody writes
	Stored  []outcome `json:"stored"`            // by device; null if even a stored expression is refused
}

func main() {
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var q question
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			log.Fatal(err)
		}
		var a answer
		if q.Quantity != nil {
			a = quantity(*q.Quantity)
		} else {
			written, stored := environment.NewExpressions, environment.StoredExpressions
			if r := compiler.CompileCELExpression(q.Expression, cel.Options{EnvType: &written}); r.Error != nil {
				a.Refused = r.Error.Error()
			} else {
				a.Cost = r.MaxCost
			}
			if r := compiler.CompileCELExpression(q.Expression, cel.Options{EnvType: &stored}); r.Error == nil {
				a.Stored = []outcome{}
				for _, d := range q.Devices {
					a.Stored = append(a.Stored, evaluate(r, q.Driver, d))
				}
			}
		}
		if err := answers.Encode(a); err != nil {
			log.Fatal(err)
		}
	}
}

func quantity(text string) answer {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return answer{Refused: err.Error()}
	}
	_, ok := q.AsInt64()
	return answer{Value: q.AsDec().String(), Int64: ok}
}

func evaluate(r cel.CompilationResult, driver string, d resourceapi.Device) outcome {
	ok, _, err := r.DeviceMatches(context.Background(), cel.Device{
		Driver: driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
	})
	if err != nil {
		return outcome{Error: err.Error()}
	}
	return outcome{Result: ok}
}
