// SPDX-License-Identifier: Apache-2.0

// Package v20170312 has the types and calls that flannel's backend for Tencent Cloud is built with. None of the calls does anything: no
// test has such a cloud.
package v20170312

import "errors"

// Filter, Route and RouteTable are what the backend asks for and gets.
type (
	Filter struct {
		Name   *string
		Values []*string
	}
	Route struct {
		DestinationCidrBlock, GatewayId, GatewayType, RouteType *string
		RouteId                                                 *uint64
		Enabled                                                 *bool
	}
	RouteTable struct {
		RouteTableId *string
		RouteSet     []*Route
	}
)

// The requests.
type (
	DescribeRouteTablesRequest struct{ Filters []*Filter }
	DeleteRoutesRequest        struct {
		RouteTableId *string
		Routes       []*Route
	}
	CreateRoutesRequest DeleteRoutesRequest
)

func NewDescribeRouteTablesRequest() *DescribeRouteTablesRequest {
	return &DescribeRouteTablesRequest{}
}
func NewDeleteRoutesRequest() *DeleteRoutesRequest { return &DeleteRoutesRequest{} }
func NewCreateRoutesRequest() *CreateRoutesRequest { return &CreateRoutesRequest{} }

// RouteTables are the answer to DescribeRouteTables.
type RouteTables struct {
	Response struct{ RouteTableSet []*RouteTable }
}

// Client is one of the cloud's API.
type Client struct{}

func NewClientWithSecretId(string, string, string) (*Client, error) { return &Client{}, nil }

var errNone = errors.New("there is no such cloud here")

func (*Client) DescribeRouteTables(*DescribeRouteTablesRequest) (*RouteTables, error) {
	return nil, errNone
}
func (*Client) DeleteRoutes(*DeleteRoutesRequest) (any, error) { return nil, errNone }
func (*Client) CreateRoutes(*CreateRoutesRequest) (any, error) { return nil, errNone }
